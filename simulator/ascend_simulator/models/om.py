"""The simulated .om file: what a compiled model looks like, and the graph that stands in for it.

    magic, version, length of the manifest, length of the graph, SHA-256   64 bytes
    manifest                                                               JSON
    graph                                                                  ONNX, weights in it

The digest covers all other bytes, so that a file that lost or changed any of them is found. What
`query_size` and the description of a model tell comes from the manifest alone: the graph is opened
only where it is executed. The manifest is JSON, so that `head -c` shows a person what a file holds.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from ascend_simulator.codes import Code, Refused
from ascend_simulator.models.aipp import Parameters

MAGIC: Final = b"ASIM_OM\n"
VERSION: Final = 3
GEAR_INPUT: Final = "ascend_mbatch_shape_data"
"""ACL_DYNAMIC_TENSOR_NAME: the last input of a model with gears."""
AIPP_INPUT: Final = "ascend_dynamic_aipp_data"
"""ACL_DYNAMIC_AIPP_NAME: behind the data inputs of a model with dynamic AIPP."""

_HEADER: Final = struct.Struct("<8sIIQ8x32s")
_DIGEST_AT: Final = _HEADER.size - hashlib.sha256().digest_size

Dims: TypeAlias = tuple[int, ...]
Family: TypeAlias = Literal["static", "batch", "image", "dims", "dynamic"]
"""How a model's shapes come about; "dynamic" is what the documents call v2: no plan of memory."""


@dataclass(frozen=True, slots=True)
class OmTensor:
    """One input or output of a model."""

    name: str
    """As pyACL tells it."""
    graph_name: str
    """As the graph in the file has it."""
    dtype: int
    """An aclDataType."""
    itemsize: int
    """Bytes of an element."""
    format: int
    """An aclFormat."""
    dims: Dims
    """-1 where gears or ranges change it; an output's are those of the largest gear."""
    ranges: tuple[tuple[int, int], ...] = ()
    """Of a dynamic model: the least and the largest value of each dim; a largest of -1: no end."""

    def nbytes(self, dims: Dims) -> int:
        """Bytes of the elements at these dims."""
        return math.prod(dims) * self.itemsize

    @property
    def most_bytes(self) -> int:
        """Of a dynamic model: bytes at the largest value of each dim; 0 where one has no end."""
        largest = tuple(high for _, high in self.ranges) if self.ranges else self.dims
        return 0 if min(largest, default=0) < 0 else self.nbytes(largest)


@dataclass(frozen=True, slots=True)
class OmAipp:
    """What makes the graph's input of the images that are given."""

    dtype: int
    """Of the graph's input, an aclDataType."""
    dims: Dims
    """Of the graph's input: channels, height, width; -1 where gears change it."""
    parameters: Parameters | None
    """None of dynamic AIPP, whose parameters are set with executions."""
    most_bytes: int
    """Of dynamic AIPP, for all images of a batch."""


@dataclass(frozen=True, slots=True)
class Shapes:
    """One set of shapes that a model can execute, in the order of its inputs and outputs."""

    gear: Dims
    """What the gear input holds to choose it; () of a static model."""
    inputs: tuple[Dims, ...]
    """Of the data inputs: the gear input is not among them."""
    outputs: tuple[Dims, ...]


@dataclass(frozen=True, slots=True)
class Manifest:
    """All about a model but its graph."""

    soc: str
    """The chip it was compiled for."""
    precision: str
    """`--precision_mode_v2`: "origin" or "fp16"."""
    family: Family
    inputs: tuple[OmTensor, ...]
    """The data inputs: the gear input is not among them."""
    outputs: tuple[OmTensor, ...]
    shapes: tuple[Shapes, ...]
    """One of a static model, one for each gear in the order of the flag, none of a dynamic one."""
    order: tuple[int, ...]
    """The inputs that --input_shape names, in its order: gears of dims are listed so."""
    largest: int
    """Index in `shapes` of the gear that is executed where none was set."""
    work_bytes: int
    """What `query_size` tells: see `compiler.sizes`. 0 of a dynamic model."""
    lean_work_bytes: int
    """What is left of `work_bytes` where inputs and outputs lie in the caller's memory alone."""
    weight_bytes: int
    source_sha256: str
    """Of the .onnx file that it was made of."""
    aipp: tuple[OmAipp | None, ...] = ()
    """Of each input that the graph has; () where none has AIPP."""

    def listed(self, dims: Sequence[Dims]) -> Dims:
        """Dims of the inputs as one gear lists them, one after another."""
        return tuple(dim for index in self.order for dim in dims[index])

    @property
    def aipp_place(self) -> int | None:
        """Which input has the parameters of dynamic AIPP; None without."""
        names = [tensor.name for tensor in self.inputs]
        return names.index(AIPP_INPUT) if AIPP_INPUT in names else None

    @property
    def aipp_rows(self) -> int:
        """Images that the parameters of dynamic AIPP are for: those of the largest gear."""
        if self.family == "batch":
            return max(rows for (rows,) in (shapes.gear for shapes in self.shapes))
        place = next(index for index, own in enumerate(self.aipp) if own)
        return self.inputs[place].dims[0]

    @property
    def gear_values(self) -> int:
        """How many numbers the gear input holds; 0 of a model without gears."""
        return len(self.shapes[0].gear) if self.shapes else 0

    def input_bytes(self, index: int) -> int:
        """The most bytes that data input `index` can have; 0 where that has no end."""
        tensor = self.inputs[index]
        sizes = (tensor.nbytes(shapes.inputs[index]) for shapes in self.shapes)
        return max(sizes, default=tensor.most_bytes)

    def output_bytes(self, index: int) -> int:
        """The most bytes that output `index` can have; 0 where the file does not tell."""
        tensor = self.outputs[index]
        sizes = (tensor.nbytes(shapes.outputs[index]) for shapes in self.shapes)
        return max(sizes, default=tensor.most_bytes)


@dataclass(frozen=True, slots=True)
class Om:
    """A whole file."""

    manifest: Manifest
    graph: bytes
    """A serialized ONNX ModelProto."""
    digest: str
    """SHA-256 of the file's content, in hex: the same content is the same model."""


def read(path: str) -> Om:
    """The file at `path`. Raises Refused: 145002 if it cannot be read, else as `parse`."""
    try:
        data = Path(path).read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        text = f"model file {path!r} cannot be read: {error}"
        raise Refused(Code.GE_EXEC_MODEL_PATH_INVALID, text) from error
    return parse(data, path)


def parse(data: bytes | memoryview, name: str = "model in memory") -> Om:
    """A file's bytes. Copies the graph once.

    Raises Refused: 145006 where bytes are missing or too many, 100013 where they are not what was
    written, or were written by another version.
    """
    if len(data) < _HEADER.size:
        raise _wrong_size(name, len(data), f"at least {_HEADER.size}")
    magic, version, manifest_bytes, graph_bytes, digest = _HEADER.unpack_from(data)
    if magic != MAGIC:
        expected = f"expected {MAGIC!r}, which the simulator's atc writes"
        raise _unparsable(f"{name}: found {magic!r} at its start, {expected}")
    if version != VERSION:
        raise _unparsable(f"{name}: found format version {version}, expected {VERSION}")
    expected_bytes = _HEADER.size + manifest_bytes + graph_bytes
    if len(data) != expected_bytes:
        raise _wrong_size(name, len(data), str(expected_bytes))
    view = memoryview(data)
    if _digest(view[:_DIGEST_AT], view[_HEADER.size :]) != digest:
        raise _unparsable(f"{name}: its bytes are not those that were written (SHA-256 differs)")
    body = view[_HEADER.size :]
    try:
        manifest = _manifest(json.loads(bytes(body[:manifest_bytes])))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise _unparsable(f"{name}: its manifest cannot be read: {error!r}") from error
    return Om(manifest, bytes(body[manifest_bytes:]), digest.hex())


def serialize(manifest: Manifest, graph: bytes) -> bytes:
    """The bytes of a file that holds the two."""
    text = json.dumps(dataclasses.asdict(manifest), separators=(",", ":")).encode()
    bare = _HEADER.pack(MAGIC, VERSION, len(text), len(graph), b"")[:_DIGEST_AT]
    body = text + graph
    return bare + _digest(bare, body) + body


def _digest(head: bytes | memoryview, body: bytes | memoryview) -> bytes:
    digest = hashlib.sha256(head)
    digest.update(body)
    return digest.digest()


def _wrong_size(name: str, found: int, expected: str) -> Refused:
    text = f"{name}: found {found} bytes, expected {expected}"
    return Refused(Code.GE_EXEC_MODEL_DATA_SIZE_INVALID, text)


def _unparsable(text: str) -> Refused:
    return Refused(Code.PARSE_MODEL, text)


def _manifest(fields: Mapping[str, Any]) -> Manifest:
    return Manifest(
        **{
            **fields,
            "inputs": tuple(_tensor(entry) for entry in fields["inputs"]),
            "outputs": tuple(_tensor(entry) for entry in fields["outputs"]),
            "order": tuple(fields["order"]),
            "aipp": tuple(entry and _aipp(entry) for entry in fields["aipp"]),
            "shapes": tuple(
                Shapes(tuple(entry["gear"]), _nested(entry["inputs"]), _nested(entry["outputs"]))
                for entry in fields["shapes"]
            ),
        }
    )


def _tensor(fields: Mapping[str, Any]) -> OmTensor:
    ranges = tuple((low, high) for low, high in fields["ranges"])
    return OmTensor(**{**fields, "dims": tuple(fields["dims"]), "ranges": ranges})


def _aipp(fields: Mapping[str, Any]) -> OmAipp:
    own = fields["parameters"]
    parameters = None if own is None else Parameters.of(own)
    return OmAipp(**{**fields, "dims": tuple(fields["dims"]), "parameters": parameters})


def _nested(lists: Sequence[Sequence[int]]) -> tuple[Dims, ...]:
    return tuple(tuple(each) for each in lists)
