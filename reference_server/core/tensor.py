"""Tensors and their data types.

A tensor is stored in the form in which it arrived: wire bytes or a NumPy array. The other form is
made at its first use and kept. Arrays are views of received bytes, which are copied only if NumPy
cannot use them in place.
"""

from __future__ import annotations

import enum

import numpy as np
import numpy.typing as npt

from reference_server.core import byte_strings, gil
from reference_server.core.errors import invalid_arg

Array = npt.NDArray[np.generic]
Shape = tuple[int, ...]


class DataType(enum.Enum):
    """A data type; the value is its name in requests (`FP32`, `BYTES`, ...)."""

    # Enum.__hash__ is a Python function, which is slow on the request path.
    __hash__ = object.__hash__

    BOOL = "BOOL"
    UINT8 = "UINT8"
    UINT16 = "UINT16"
    UINT32 = "UINT32"
    UINT64 = "UINT64"
    INT8 = "INT8"
    INT16 = "INT16"
    INT32 = "INT32"
    INT64 = "INT64"
    FP16 = "FP16"
    FP32 = "FP32"
    FP64 = "FP64"
    BF16 = "BF16"
    BYTES = "BYTES"

    config_name: str
    byte_size: int
    #: True for BYTES, whose elements differ in length.
    is_bytes: bool
    numpy: npt.DTypeLike


#: NumPy has no bfloat16: its bits are stored as uint16.
_NUMPY: dict[DataType, npt.DTypeLike] = {
    DataType.BOOL: np.dtype(np.bool_),
    DataType.UINT8: np.dtype(np.uint8),
    DataType.UINT16: np.dtype(np.uint16),
    DataType.UINT32: np.dtype(np.uint32),
    DataType.UINT64: np.dtype(np.uint64),
    DataType.INT8: np.dtype(np.int8),
    DataType.INT16: np.dtype(np.int16),
    DataType.INT32: np.dtype(np.int32),
    DataType.INT64: np.dtype(np.int64),
    DataType.FP16: np.dtype(np.float16),
    DataType.FP32: np.dtype(np.float32),
    DataType.FP64: np.dtype(np.float64),
    DataType.BF16: np.dtype(np.uint16),
    DataType.BYTES: np.dtype(np.object_),
}

for _member in DataType:
    # Plain attributes, since properties are slower and the request path reads them per tensor.
    _member.config_name = "TYPE_STRING" if _member is DataType.BYTES else f"TYPE_{_member.value}"
    _member.is_bytes = _member is DataType.BYTES
    _member.numpy = _NUMPY[_member]
    _member.byte_size = 0 if _member is DataType.BYTES else np.dtype(_NUMPY[_member]).itemsize

#: Data types by their names in requests.
DATATYPES: dict[str, DataType] = {member.value: member for member in DataType}
CONFIG_DATATYPES: dict[str, DataType] = {member.config_name: member for member in DataType}
#: Keyed by dtype, because hashing a dtype takes a tenth of the time of making its name.
_BY_NUMPY: dict[np.dtype[np.generic], DataType] = {
    np.dtype(_NUMPY[member]): member for member in DataType if member is not DataType.BF16
}


def datatype_of(array: npt.NDArray[np.generic]) -> DataType | None:
    """Return the data type of the elements of `array`; None if the protocol has no such type.

    Fixed-width byte strings (`S<n>`) and objects are BYTES; uint16 is UINT16, never BF16.
    """
    found = _BY_NUMPY.get(array.dtype)
    if found is None and array.dtype.kind == "S":
        return DataType.BYTES
    return found


_BYTES = DataType.BYTES  # an attribute lookup on the enum takes ten times as long
#: The largest number of dimensions. NumPy allows 64. Multiplying the sizes of millions takes
#: minutes.
_MAX_DIMENSIONS = 1 << 10


def check_rank(name: str, rank: int) -> None:
    """Raise ServerError if the shape of input `name` has more than 1,024 dimensions."""
    if rank > _MAX_DIMENSIONS:
        raise invalid_arg(
            f"invalid shape for input '{name}': found {rank} dimensions, expected at most "
            f"{_MAX_DIMENSIONS}"
        )


class Tensor:
    """A tensor: name, data type, shape and elements in row-major order.

    If a request names an unknown type, `datatype` is None. Such a tensor is refused before its
    array is used.
    """

    __slots__ = ("_array", "_counted", "_elements", "_raw", "datatype", "name", "shape")

    def __init__(
        self,
        name: str,
        datatype: DataType | None,
        shape: Shape,
        *,
        array: Array | None = None,
        raw: memoryview | None = None,
    ) -> None:
        self.name = name
        self.datatype = datatype
        self.shape = shape
        self._array = array
        self._raw = raw
        self._elements: list[bytes] | None = None
        self._counted: int | byte_strings.Malformed | None = None  # set only for large tensors

    def __repr__(self) -> str:
        kind = self.datatype.value if self.datatype else "<invalid>"
        held = "array" if self._array is not None else "bytes"
        return f"Tensor({self.name!r}, {kind}, {list(self.shape)}, held as {held})"

    @property
    def is_raw(self) -> bool:
        """True if the wire bytes exist."""
        return self._raw is not None

    @property
    def byte_size(self) -> int:
        """The number of wire bytes."""
        if self._raw is not None:
            return len(self._raw)
        assert self._array is not None
        if self.datatype is _BYTES:
            return len(self.raw())
        return self._array.nbytes

    @property
    def string_bytes(self) -> int:
        """The number of bytes of a BYTES tensor's strings, approximately; 0 for other tensors."""
        if self.datatype is not _BYTES:
            return 0
        if self._raw is not None:
            return len(self._raw)
        assert self._array is not None
        return sum(map(len, self._array.ravel().tolist()))

    def string_count(self) -> int:
        """Return the number of strings in a BYTES tensor, which can differ from its shape.

        Raises:
            byte_strings.Malformed: The wire bytes are malformed.
        """
        if self._raw is None:
            assert self._array is not None
            return self._array.size
        if not gil.is_long(string_bytes=len(self._raw)):
            return len(self._strings())
        self.count_strings()
        if isinstance(self._counted, byte_strings.Malformed):
            raise self._counted
        assert self._counted is not None
        return self._counted

    @property
    def has_uncounted_strings(self) -> bool:
        """True if `string_count` would take more than a few milliseconds."""
        return (
            self.datatype is _BYTES
            and self._counted is None
            and self._raw is not None
            and gil.is_long(string_bytes=len(self._raw))
        )

    def count_strings(self) -> None:
        """Count the strings in advance, while other threads may run."""
        if self.has_uncounted_strings:
            assert self._raw is not None
            try:
                self._counted = byte_strings.count(self._raw)
            except byte_strings.Malformed as fault:
                self._counted = fault

    def _strings(self) -> list[bytes]:
        if self._elements is None:
            assert self._raw is not None
            self._elements = byte_strings.split(self._raw)
        return self._elements

    def array(self) -> Array:
        """Return the elements as a writable, aligned array of `shape`.

        Writable and aligned bytes are viewed, other bytes are copied once; such an array is
        C-contiguous. BYTES become an object array of `bytes`.

        Raises:
            byte_strings.Malformed: The wire bytes of a BYTES tensor are malformed.
        """
        if self._array is None:
            assert self._raw is not None
            assert self.datatype is not None
            if self.datatype is _BYTES:
                self._array = byte_strings.as_array(self._strings(), self.shape)
            else:
                array: Array = np.ndarray(self.shape, self.datatype.numpy, self._raw)
                if self._raw.readonly or not array.flags.aligned:
                    array = array.copy()
                self._array = array
        elif self._array.shape != self.shape:
            # Strings from JSON are a flat array, because they are counted before they are shaped.
            self._array = self._array.reshape(self.shape)
        return self._array

    def raw(self) -> memoryview:
        """Return the wire bytes: little-endian, row-major."""
        if self._raw is None:
            assert self._array is not None
            if self.datatype is _BYTES:
                self._raw = memoryview(byte_strings.serialize(self._array))
            elif self._array.size:
                self._raw = np.ascontiguousarray(self._array).data.cast("B")
            else:
                self._raw = memoryview(b"")  # memoryview.cast refuses zeros in a shape
        return self._raw

    def renamed(self, name: str, shape: Shape | None = None) -> Tensor:
        """Return a tensor that shares the elements under another name and, optionally, shape."""
        shape = self.shape if shape is None else shape
        array = None if self._array is None else self._array.reshape(shape)
        renamed = Tensor(name, self.datatype, shape, array=array, raw=self._raw)
        renamed._elements, renamed._counted = self._elements, self._counted
        return renamed

    def protected(self) -> Tensor:
        """Return a tensor that shares the elements but cannot change them.

        Its `array()` is read-only, or a copy of the bytes.
        """
        array = None
        if self._array is not None:
            array = self._array.view()
            array.flags.writeable = False
        raw = None if self._raw is None else self._raw.toreadonly()
        protected = Tensor(self.name, self.datatype, self.shape, array=array, raw=raw)
        protected._elements, protected._counted = self._elements, self._counted
        return protected

    def frozen(self) -> Tensor:
        """Return a tensor with its own, immutable bytes. Copies at most once."""
        if self._raw is None and self.datatype is not _BYTES:
            assert self._array is not None
            data = memoryview(self._array.tobytes())
        else:
            data = self.raw()
            if not (isinstance(data.obj, bytes) and len(data.obj) == len(data)):
                data = memoryview(data.tobytes())
        return Tensor(self.name, self.datatype, self.shape, raw=data)
