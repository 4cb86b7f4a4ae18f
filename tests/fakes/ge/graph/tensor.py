"""See `ge`: tensors, made of lists and read as text."""

import re
import sys

import acl
import numpy as np

from ascend_simulator import process
from ge import Misuse
from ge.graph.types import DataType, Format, Placement

NUMPY = {
    DataType.DT_FLOAT: np.float32,
    DataType.DT_FLOAT16: np.float16,
    DataType.DT_INT8: np.int8,
    DataType.DT_INT32: np.int32,
    DataType.DT_UINT8: np.uint8,
    DataType.DT_INT16: np.int16,
    DataType.DT_UINT16: np.uint16,
    DataType.DT_UINT32: np.uint32,
    DataType.DT_INT64: np.int64,
    DataType.DT_UINT64: np.uint64,
    DataType.DT_BOOL: np.bool_,
    DataType.DT_DOUBLE: np.float64,
}
_TO_DEVICE, _TO_HOST = 1, 2
_NORMAL_ONLY = 2
_NUMBER = re.compile(r"-?\d+")


def checked(what, code):
    """A failed call of the driver is GE-PY's RuntimeError."""
    if code:
        raise RuntimeError(f"{what} failed, error code is {code}: {acl.get_recent_err_msg()}")


class Tensor:
    """A tensor on the host or on a device, whose device memory is freed with it."""

    def __init__(
        self,
        data=None,
        file_path=None,
        data_type=DataType.DT_FLOAT,
        format=Format.FORMAT_ND,
        shape=None,
        placement=Placement.PLACEMENT_HOST,
    ):
        self._release = None
        if shape is not None and not (
            isinstance(shape, list) and all(isinstance(dim, int) for dim in shape)
        ):
            raise TypeError("Shape must be a list of integers")
        if not isinstance(placement, Placement):
            raise TypeError("Placement must be a Placement")
        if data is not None and file_path is not None:
            raise RuntimeError("Tensor should be created either by data or by file")
        if not isinstance(data, list):
            raise TypeError("data should be List")
        if all(isinstance(each, bool) for each in data):
            made = np.bool_
        elif data_type == DataType.DT_DOUBLE:
            raise RuntimeError("DT_DOUBLE is not supported in python Tensor constructor")
        elif data_type not in NUMPY or data_type == DataType.DT_BOOL:
            raise RuntimeError(f"Failed to create Tensor with data type: {data_type}")
        else:
            made = NUMPY[data_type]
        if made != NUMPY.get(data_type):
            raise Misuse(f"Tensor: found bools for {data_type!r}, which GE takes for others")
        self._become(np.array(data, made).reshape(shape or []), data_type)

    def _become(self, array, data_type):
        self._shape, self.data_type = list(array.shape), data_type
        self.placement = Placement.PLACEMENT_HOST
        self._array = array
        self.address = 0
        self.nbytes = array.nbytes
        self._machine = process.current()

    @classmethod
    def on_device(cls, address, array, data_type, release):
        """A result: memory of `array`'s size at this address, given back by `release`."""
        tensor = cls.__new__(cls)
        tensor._become(array, data_type)
        tensor._array = None
        tensor.placement = Placement.PLACEMENT_DEVICE
        tensor.address, tensor._release = address, release
        return tensor

    @property
    def shape(self):
        return list(self._shape)

    def __copy__(self):
        raise RuntimeError("Tensor does not support copy")

    def __deepcopy__(self, memo):
        raise RuntimeError("Tensor does not support deepcopy")

    def __del__(self, is_finalizing=sys.is_finalizing):
        # At the interpreter's end the modules that give memory back are gone, as is the machine.
        if not is_finalizing():
            self._give_back()

    def to_device(self):
        if self.placement is Placement.PLACEMENT_DEVICE:
            raise ValueError("to_device() only supports host tensors")
        address, code = acl.rt.malloc(max(1, self.nbytes), _NORMAL_ONLY)
        checked("aclrtMalloc", code)
        self._release = lambda: acl.rt.free(address)
        source = np.ascontiguousarray(self._array)
        code = acl.rt.memcpy(address, self.nbytes, source.ctypes.data, self.nbytes, _TO_DEVICE)
        checked("aclrtMemcpy", code)
        self.address, self._array = address, None
        self.placement = Placement.PLACEMENT_DEVICE
        return self

    def to_host(self):
        if self.placement is Placement.PLACEMENT_HOST:
            raise ValueError("to_host() only supports device tensors")
        array = np.empty(self.shape, NUMPY[self.data_type])
        code = acl.rt.memcpy(array.ctypes.data, self.nbytes, self.address, self.nbytes, _TO_HOST)
        checked("aclrtMemcpy", code)
        self._give_back()
        self._array, self.placement = array, Placement.PLACEMENT_HOST
        return self

    def set_data_type(self, data_type):
        """Reinterpret the bytes as elements of another type."""
        if not isinstance(data_type, DataType):
            raise TypeError("Data_type must be a DataType")
        if self._array is not None:
            if np.dtype(NUMPY[data_type]).itemsize != self._array.itemsize:
                raise Misuse(f"set_data_type: found {data_type!r}, expected a type of that size")
            self._array = self._array.view(NUMPY[data_type])
        self.data_type = data_type
        return self

    def get_data(self):
        """Nested lists, by way of a text."""
        if self._array is None:
            raise RuntimeError("Failed to get Tensor data")
        if not self._array.size:
            raise ValueError("Input must start with '[' and end with ']'")
        if not self._array.ndim:
            raise Misuse("get_data: found no dims, where GE writes beyond the element")
        flat = [_read(_written(each)) for each in self._array.ravel().tolist()]
        return np.array(flat, object).reshape(self.shape).tolist()

    def _give_back(self):
        release, self._release = getattr(self, "_release", None), None
        # What an error kept beyond its test has its memory in a machine that is gone.
        if release is not None and self._machine is process.current():
            release()


def _written(value):
    """Format a value like GE's tensor_value_utils.cc: std::to_string, and words for booleans."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:.6f}" if isinstance(value, float) else str(value)


def _read(text):
    try:
        return int(text) if _NUMBER.fullmatch(text) else float(text)
    except ValueError:
        raise ValueError(f"Invalid item: '{text}'") from None
