"""A named tensor, held in whichever form it arrived: bytes of the wire, or a NumPy array.

The other form is made when somebody asks for it and kept. Bytes that arrived are viewed, not
copied, unless NumPy could not use them in place.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from reference_server.core import byte_strings
from reference_server.core.dtypes import DataType
from reference_server.core.errors import invalid_arg

Array = npt.NDArray[np.generic]
Shape = tuple[int, ...]

_BYTES = DataType.BYTES  # to look a member up by its class takes ten times as long
#: More dimensions has no shape: NumPy knows 64, and to multiply millions takes minutes.
_MOST_DIMENSIONS = 1 << 10
#: Bytes of strings that are read at once, and kept apart: some milliseconds' work.
_MANY_STRINGS = 1 << 16


def check_rank(name: str, rank: int) -> None:
    """Raise ServerError if the shape of input `name` has very many dimensions."""
    if rank > _MOST_DIMENSIONS:
        raise invalid_arg(
            f"invalid shape for input '{name}': it has {rank} dimensions, more than "
            f"{_MOST_DIMENSIONS}"
        )


class Tensor:
    """`name`, `datatype`, `shape` and the elements, row-major.

    `datatype` is None only for a request's tensor whose type name is unknown; such a tensor is
    refused before anyone asks for its array.
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
        self._counted: int | byte_strings.Malformed | None = None  # of many strings

    def __repr__(self) -> str:
        kind = self.datatype.value if self.datatype else "<invalid>"
        held = "array" if self._array is not None else "bytes"
        return f"Tensor({self.name!r}, {kind}, {list(self.shape)}, held as {held})"

    @property
    def is_raw(self) -> bool:
        """True if the wire form is at hand."""
        return self._raw is not None

    @property
    def byte_size(self) -> int:
        """The number of bytes of the wire form."""
        if self._raw is not None:
            return len(self._raw)
        assert self._array is not None
        if self.datatype is _BYTES:
            return len(self.raw())
        return self._array.nbytes

    def string_count(self) -> int:
        """The number of elements of a BYTES tensor, whatever its shape says.

        Raises byte_strings.Malformed if the wire form cannot be read.
        """
        if self._raw is None:
            assert self._array is not None
            return self._array.size
        if len(self._raw) <= _MANY_STRINGS:
            return len(self._strings())
        self.count_strings()
        if isinstance(self._counted, byte_strings.Malformed):
            raise self._counted
        assert self._counted is not None
        return self._counted

    @property
    def has_uncounted_strings(self) -> bool:
        """True if `string_count` would take longer than some milliseconds."""
        return (
            self.datatype is _BYTES
            and self._counted is None
            and self._raw is not None
            and len(self._raw) > _MANY_STRINGS
        )

    def count_strings(self) -> None:
        """Count them, so that `string_count` takes no time; others are let in meanwhile."""
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
        """The elements as an array of `shape`: writable, aligned, C-contiguous if it was bytes.

        A view of the bytes that arrived where these are writable and aligned for the type,
        otherwise one copy. BYTES become an object array of `bytes`; raises
        byte_strings.Malformed if they are none.
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
            # Strings from JSON come flat: they are counted before they get their shape.
            self._array = self._array.reshape(self.shape)
        return self._array

    def raw(self) -> memoryview:
        """The wire form, little-endian and row-major, as flat bytes."""
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
        """The same elements under another name, and in another shape of as many elements."""
        shape = self.shape if shape is None else shape
        array = None if self._array is None else self._array.reshape(shape)
        renamed = Tensor(name, self.datatype, shape, array=array, raw=self._raw)
        renamed._elements, renamed._counted = self._elements, self._counted
        return renamed

    def protected(self) -> Tensor:
        """The same elements for one of several holders: who writes to them gets a copy.

        `array()` is then read-only, or a copy of the bytes.
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
        """The same elements in bytes of its own that nobody can write to; copies at most once."""
        if self._raw is None and self.datatype is not _BYTES:
            assert self._array is not None
            data = memoryview(self._array.tobytes())
        else:
            data = self.raw()
            if not (isinstance(data.obj, bytes) and len(data.obj) == len(data)):
                data = memoryview(data.tobytes())
        return Tensor(self.name, self.datatype, self.shape, raw=data)
