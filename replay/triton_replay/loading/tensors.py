"""The model under load, and the inputs of its requests, as single rows and as batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Final
from urllib.parse import quote

from triton_replay.errors import ReplayError
from triton_replay.wire.answers import DTYPES, flat, tensor_of_values, wire_of
from triton_replay.wire.bodies import NotUnderstood

SIZES: Final = {"BF16": 2, **{name: dtype.itemsize for name, dtype in DTYPES.items()}}
"""Size of an element in bytes; BYTES have no fixed size."""


@dataclass(frozen=True)
class Region:
    """The first `size` bytes of a shared memory region."""

    name: str
    size: int


@dataclass(frozen=True)
class TensorData:
    """One input: its values as bytes, or the shared memory region that holds them."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes
    region: Region | None = None


@dataclass(frozen=True)
class RequestData:
    """The inputs of a request."""

    tensors: tuple[TensorData, ...]


Row = Mapping[str, TensorData]
"""The inputs of a row, without the batch axis."""


def batches(model: Model, streams: Sequence[Sequence[Row]], batch: int) -> list[list[RequestData]]:
    """Return the requests of each stream, each with `batch` consecutive rows.

    Raises:
        ReplayError: The model does not allow the batch size, or the rows differ in shape.
    """
    if model.max_batch_size == 0 and batch != 1:
        text = f"-b: found {batch}, expected 1: {model.name} has max_batch_size 0"
        raise ReplayError(text)
    if model.max_batch_size and not 1 <= batch <= model.max_batch_size:
        text = f"-b: found {batch}, expected 1 to {model.max_batch_size} for {model.name}"
        raise ReplayError(text)
    return [
        [
            _join_rows(model, [rows[(first + step) % len(rows)] for step in range(batch)])
            for first in range(len(rows))
        ]
        for rows in streams
    ]


def values_of(place: TensorPlace, shape: tuple[int, ...], values: object, where: str) -> TensorData:
    """Create an input from JSON values.

    Args:
        place: The input.
        shape: The shape of the input.
        values: Numbers or texts, in any nesting of lists.
        where: Location of the values, for error texts.

    Raises:
        ReplayError: The number or type of the values is wrong.
    """
    found = flat(values)
    if len(found) != prod(shape):
        raise ReplayError(
            f"{where}: found {len(found)} values, expected {prod(shape)} for shape {list(shape)}"
        )
    for index, value in enumerate(found):
        if not _fits(place.datatype, value):
            raise ReplayError(f"{where}[{index}]: found {value!r}, expected {place.datatype}")
    try:
        tensor = tensor_of_values(place.name, place.datatype, shape, found)
    except NotUnderstood as error:
        raise ReplayError(f"{where}: {error}") from error
    return TensorData(place.name, place.datatype, shape, wire_of(tensor))


def bytes_of(place: TensorPlace, shape: tuple[int, ...], data: bytes, where: str) -> TensorData:
    """Create an input from binary data.

    Args:
        place: The input.
        shape: The shape of the input.
        data: The bytes of the binary data extension.
        where: Location of the bytes, for error texts.

    Raises:
        ReplayError: The size does not fit datatype and shape.
    """
    size = SIZES.get(place.datatype)
    if size is not None and len(data) != size * prod(shape):
        raise ReplayError(
            f"{where}: found {len(data)} bytes, expected {size * prod(shape)} for "
            f"{place.datatype} of shape {list(shape)}"
        )
    if size is None and _elements(data) != prod(shape):
        raise ReplayError(
            f"{where}: expected {prod(shape)} elements for shape {list(shape)}, each preceded by "
            "its length in 4 bytes"
        )
    return TensorData(place.name, place.datatype, shape, data)


def _join_rows(model: Model, rows: Sequence[Row]) -> RequestData:
    if not model.max_batch_size:
        return RequestData(tuple(rows[0].values()))
    found = []
    for name, first in rows[0].items():
        same = [row.get(name) for row in rows]
        if any(one is None or one.shape != first.shape for one in same):
            raise ReplayError(
                f"-b: input {name!r} has different shapes; rows of one request need equal shapes"
            )
        data = b"".join(one.data for one in same if one is not None)
        found.append(replace(first, shape=(len(rows), *first.shape), data=data))
    return RequestData(tuple(found))


def _fits(datatype: str, value: object) -> bool:
    if datatype == "BYTES":
        return isinstance(value, str)
    if datatype == "BOOL":
        return isinstance(value, bool) or value in (0, 1)
    if "INT" in datatype:
        return isinstance(value, int)
    return isinstance(value, int | float)


def _elements(data: bytes) -> int:
    """Count BYTES elements; return -1 if the lengths do not add up."""
    count = offset = 0
    while offset < len(data):
        offset += 4 + int.from_bytes(data[offset : offset + 4], "little")
        count += 1
    return count if offset == len(data) else -1


# -- the model under load, from its metadata and configuration

Document = Mapping[str, Any]
_SAFE: Final = "!$&'()*+,;=:@"
"""Characters that stay unescaped in a path: servers do not decode them."""


@dataclass(frozen=True)
class TensorPlace:
    """An input or output. The shape has no batch axis; -1 is a free size."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    optional: bool = False


@dataclass(frozen=True)
class Model:
    """The properties of a model that requests depend on."""

    name: str
    version: str
    max_batch_size: int
    """0 if tensors have no batch axis."""
    inputs: tuple[TensorPlace, ...]
    outputs: tuple[TensorPlace, ...]
    is_decoupled: bool
    is_sequence: bool
    steps: tuple[tuple[str, str], ...]
    """Models of an ensemble and their versions; "" for the newest."""
    has_cache: bool

    @property
    def path(self) -> str:
        """URL path of the model."""
        return model_path(self.name, self.version)


def model_path(name: str, version: str) -> str:
    """Return the URL path of a model; version "" is the newest."""
    versions = f"/versions/{quote(version)}" if version else ""
    return f"/v2/models/{quote(name, _SAFE)}{versions}"


def model_of(name: str, version: str, metadata: Document, config: Document) -> Model:
    """Read a model's metadata and configuration.

    Args:
        name: Name of the model.
        version: Version of the model; "" for the newest.
        metadata: The server's metadata of the model.
        config: The model's configuration; empty if the server has none.

    Raises:
        ReplayError: The metadata describe no inputs.
    """
    batch = int(config.get("max_batch_size", 0) or 0)
    optional = {
        str(one.get("name"))
        for one in _objects(config.get("input", ()))
        if one.get("optional") is True
    }
    try:
        inputs = tuple(_place(one, batch, optional) for one in metadata["inputs"])
        outputs = tuple(_place(one, batch, optional) for one in metadata.get("outputs", ()))
    except (KeyError, TypeError, ValueError) as error:
        text = f"-m {name}: metadata: expected inputs with name, datatype, shape; found {metadata}"
        raise ReplayError(text[:400]) from error
    steps = _objects(_object(config.get("ensemble_scheduling")).get("step", ()))
    return Model(
        name=name,
        version=version,
        max_batch_size=batch,
        inputs=inputs,
        outputs=outputs,
        is_decoupled=_object(config.get("model_transaction_policy")).get("decoupled") is True,
        is_sequence="sequence_batching" in config,
        steps=tuple((str(s.get("model_name")), _version(s.get("model_version"))) for s in steps),
        has_cache=_object(config.get("response_cache")).get("enable") is True,
    )


def _place(described: Document, batch: int, optional: set[str]) -> TensorPlace:
    shape = tuple(int(size) for size in described["shape"])
    name = str(described["name"])
    return TensorPlace(
        name, str(described["datatype"]), shape[1:] if batch else shape, name in optional
    )


def _version(value: object) -> str:
    text = str(value if value is not None else "")
    return "" if text == "-1" else text


def _objects(value: object) -> Sequence[Document]:
    if not isinstance(value, list | tuple):
        return ()
    return [one for one in value if isinstance(one, Mapping)]


def _object(value: object) -> Document:
    return value if isinstance(value, Mapping) else {}
