"""The simulated .om file: its format, with a manifest of the model and the graph.

    magic, version, length of the manifest, length of the graph, SHA-256   64 bytes
    manifest                                                               JSON
    graph                                                                  ONNX, with its weights

The SHA-256 covers all other bytes, so that any lost or changed byte is detected. `query_size` and
model descriptions use only the manifest; the graph is opened only for execution. The manifest is
JSON, so that people can read it with `head -c`.
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
"""ACL_DYNAMIC_AIPP_NAME: the input after the data inputs of a model with dynamic AIPP."""

_HEADER: Final = struct.Struct("<8sIIQ8x32s")
_DIGEST_AT: Final = _HEADER.size - hashlib.sha256().digest_size

Dims: TypeAlias = tuple[int, ...]
Family: TypeAlias = Literal["static", "batch", "image", "dims", "dynamic"]
"""The kind of a model's shapes.

"dynamic" is called dynamic shape v2 in CANN's documents. Such a model has no memory plan.
"""


@dataclass(frozen=True, slots=True)
class OmTensor:
    """One input or output of a model."""

    name: str
    """The name in pyACL."""
    graph_name: str
    """The name in the file's graph."""
    dtype: int
    """An aclDataType."""
    itemsize: int
    """Bytes of an element."""
    format: int
    """An aclFormat."""
    dims: Dims
    """Dims. Inputs: a dim that gears or ranges change is -1. Outputs: dims of the largest gear."""
    ranges: tuple[tuple[int, int], ...] = ()
    """For a dynamic model: minimum and maximum of each dim; -1 means no maximum."""

    def nbytes(self, dims: Dims) -> int:
        """Return the bytes of the elements at these dims."""
        return math.prod(dims) * self.itemsize

    @property
    def most_bytes(self) -> int:
        """For a dynamic model: bytes at the maximum of each dim; 0 if a dim has no maximum."""
        largest = tuple(high for _, high in self.ranges) if self.ranges else self.dims
        return 0 if min(largest, default=0) < 0 else self.nbytes(largest)


@dataclass(frozen=True, slots=True)
class OmAipp:
    """The AIPP of one graph input, which computes the input from images."""

    dtype: int
    """The graph input's aclDataType."""
    dims: Dims
    """The graph input's channels, height, width; a dim that gears change is -1."""
    parameters: Parameters | None
    """None for dynamic AIPP, whose parameters are set before executions."""
    most_bytes: int
    """For dynamic AIPP: the maximum bytes of all images of a batch."""


@dataclass(frozen=True, slots=True)
class Shapes:
    """One set of shapes that a model can execute, in the order of inputs and outputs."""

    gear: Dims
    """The values in the gear input that select these shapes; () for a static model."""
    inputs: tuple[Dims, ...]
    """Dims of the data inputs, without the gear input."""
    outputs: tuple[Dims, ...]


@dataclass(frozen=True, slots=True)
class Manifest:
    """All data of a model except its graph."""

    soc: str
    """The chip that the model was compiled for."""
    precision: str
    """`--precision_mode_v2`: "origin" or "fp16"."""
    family: Family
    inputs: tuple[OmTensor, ...]
    """The data inputs, without the gear input."""
    outputs: tuple[OmTensor, ...]
    shapes: tuple[Shapes, ...]
    """One entry for a static model; one entry per gear, in the flag's order; () if dynamic."""
    order: tuple[int, ...]
    """The inputs in the order of --input_shape. The dims of a gear are listed in this order."""
    largest: int
    """Index in `shapes` of the largest gear, which is executed if no gear was set."""
    work_bytes: int
    """The workspace that `query_size` returns, see `compiler.inference`; 0 for a dynamic model."""
    lean_work_bytes: int
    """`work_bytes` without the share of inputs and outputs that are only in the caller's memory."""
    weight_bytes: int
    source_sha256: str
    """The SHA-256 of the source .onnx file."""
    aipp: tuple[OmAipp | None, ...] = ()
    """The AIPP of each graph input; () if none has AIPP."""

    def listed(self, dims: Sequence[Dims]) -> Dims:
        """Return the dims of all inputs concatenated, as one gear lists them."""
        return tuple(dim for index in self.order for dim in dims[index])

    @property
    def aipp_place(self) -> int | None:
        """Index of the input for dynamic AIPP parameters; None without dynamic AIPP."""
        names = [tensor.name for tensor in self.inputs]
        return names.index(AIPP_INPUT) if AIPP_INPUT in names else None

    @property
    def aipp_rows(self) -> int:
        """Number of images in the dynamic AIPP parameters: the images of the largest gear."""
        if self.family == "batch":
            return max(rows for (rows,) in (shapes.gear for shapes in self.shapes))
        place = next(index for index, own in enumerate(self.aipp) if own)
        return self.inputs[place].dims[0]

    @property
    def gear_values(self) -> int:
        """Number of values in the gear input; 0 for a model without gears."""
        return len(self.shapes[0].gear) if self.shapes else 0

    def input_bytes(self, index: int) -> int:
        """Return the maximum bytes of data input `index`; 0 if there is no maximum."""
        tensor = self.inputs[index]
        sizes = (tensor.nbytes(shapes.inputs[index]) for shapes in self.shapes)
        return max(sizes, default=tensor.most_bytes)

    def output_bytes(self, index: int) -> int:
        """Return the maximum bytes of output `index`; 0 if the maximum is unknown."""
        tensor = self.outputs[index]
        sizes = (tensor.nbytes(shapes.outputs[index]) for shapes in self.shapes)
        return max(sizes, default=tensor.most_bytes)


BUNDLE_MAGIC: Final = b"ASIM_BDL"
_BUNDLE: Final = struct.Struct("<8sI")
_SIZE: Final = struct.Struct("<Q")


def bundle(files: Sequence[bytes]) -> bytes:
    """Return the bytes of a bundle of model files: their number, sizes and contents."""
    sizes = b"".join(_SIZE.pack(len(file)) for file in files)
    return _BUNDLE.pack(BUNDLE_MAGIC, len(files)) + sizes + b"".join(files)


def parse_bundle(data: bytes | memoryview, name: str = "bundle in memory") -> list[Om]:
    """Parse the models of a bundle.

    Raises Refused: INVALID_PARAM for another file or too few bytes (GetBundleNumAndOffset in GE's
    model.cpp), and like `parse`.
    """
    if len(data) < _BUNDLE.size or bytes(data[:8]) != BUNDLE_MAGIC:
        raise Refused(Code.INVALID_PARAM, f"{name}: found another file, expected a bundle")
    _, count = _BUNDLE.unpack_from(data)
    first = _BUNDLE.size + count * _SIZE.size
    if len(data) < first:
        raise Refused(Code.INVALID_PARAM, f"{name}: found {len(data)} bytes, expected {first}")
    found = []
    for index in range(count):
        (size,) = _SIZE.unpack_from(data, _BUNDLE.size + index * _SIZE.size)
        found.append(parse(memoryview(data)[first : first + size], f"{name}, model {index}"))
        first += size
    return found


@dataclass(frozen=True, slots=True)
class Om:
    """The content of a file."""

    manifest: Manifest
    graph: bytes
    """A serialized ONNX ModelProto."""
    digest: str
    """SHA-256 of the file's content, in hex. Files with the same content are the same model."""


def read(path: str) -> Om:
    """Read the file at `path`.

    Raises Refused: 145002 if the file cannot be read, and like `parse`.
    """
    return parse(content(path), path)


def content(path: str) -> bytes:
    """Return the bytes of the file at `path`. Raises Refused 145002 if it cannot be read."""
    try:
        return Path(path).read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        text = f"model file {path!r} cannot be read: {error}"
        raise Refused(Code.GE_EXEC_MODEL_PATH_INVALID, text) from error


def parse(data: bytes | memoryview, name: str = "model in memory") -> Om:
    """Parse a file's bytes. Copies the graph once.

    Raises Refused: 145006 for missing or extra bytes, 100013 for changed bytes or another format
    version.
    """
    if len(data) < _HEADER.size:
        raise _wrong_size(name, len(data), f"at least {_HEADER.size}")
    magic, version, manifest_bytes, graph_bytes, digest = _HEADER.unpack_from(data)
    if magic != MAGIC:
        expected = f"expected {MAGIC!r}, as the simulator's atc writes"
        raise _unparsable(f"{name}: found {magic!r} at its start, {expected}")
    if version != VERSION:
        raise _unparsable(f"{name}: found format version {version}, expected {VERSION}")
    expected_bytes = _HEADER.size + manifest_bytes + graph_bytes
    if len(data) != expected_bytes:
        raise _wrong_size(name, len(data), str(expected_bytes))
    view = memoryview(data)
    if _digest(view[:_DIGEST_AT], view[_HEADER.size :]) != digest:
        raise _unparsable(f"{name}: its content was changed (SHA-256 differs)")
    body = view[_HEADER.size :]
    try:
        manifest = _manifest(json.loads(bytes(body[:manifest_bytes])))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise _unparsable(f"{name}: its manifest cannot be read: {error!r}") from error
    return Om(manifest, bytes(body[manifest_bytes:]), digest.hex())


def serialize(manifest: Manifest, graph: bytes) -> bytes:
    """Return the bytes of a file with this manifest and graph."""
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
