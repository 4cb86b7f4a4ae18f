"""Execution of a model's graph by ONNX Runtime on the caller's memory."""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, Final, TypeAlias
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from ascend_simulator.codes import DataType
from ascend_simulator.models.om import Dims

# onnxruntime's objects, which have no type annotations.
Session: TypeAlias = Any
IOBinding: TypeAlias = Any
Array: TypeAlias = NDArray[Any]

_ELEMENTS: Final[Mapping[int, Any]] = {
    DataType.ACL_FLOAT: np.float32,
    DataType.ACL_FLOAT16: np.float16,
    DataType.ACL_BF16: 16,  # TensorProto.BFLOAT16: NumPy has none
    DataType.ACL_DOUBLE: np.float64,
    DataType.ACL_INT8: np.int8,
    DataType.ACL_INT16: np.int16,
    DataType.ACL_INT32: np.int32,
    DataType.ACL_INT64: np.int64,
    DataType.ACL_UINT8: np.uint8,
    DataType.ACL_UINT16: np.uint16,
    DataType.ACL_UINT32: np.uint32,
    DataType.ACL_UINT64: np.uint64,
    DataType.ACL_BOOL: np.bool_,
}
"""The element types in ONNX Runtime's bindings, by aclDataType."""
_ONLY_FATAL: Final = 4

_shared: Final[WeakValueDictionary[tuple[str, int], Graph]] = WeakValueDictionary()
"""Graphs by the file's digest and the number of threads."""
_lock = Lock()


@dataclass(frozen=True, slots=True)
class Bound:
    """One input or output of an execution, and the address of its elements."""

    name: str
    dtype: int
    """An aclDataType."""
    dims: Dims
    address: int
    """A host address with as many bytes as the dims need."""


def elements(bound: Bound) -> Array:
    """Return a copy of the elements. BF16 is returned as 16-bit integers."""
    kind = np.dtype(np.uint16 if bound.dtype == DataType.ACL_BF16 else _ELEMENTS[bound.dtype])
    count = math.prod(bound.dims)
    return np.frombuffer(ctypes.string_at(bound.address, count * kind.itemsize), kind).reshape(
        bound.dims
    )


class Graph:
    """An opened graph. Concurrent runs on several threads are safe."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @classmethod
    def open(cls, graph: bytes, threads: int) -> Graph:
        """Open a serialized ModelProto, to run on `threads` threads.

        Raises onnxruntime's exceptions.
        """
        # From 1.29 on ONNX Runtime sends telemetry unless this variable is set before its
        # import (Privacy.md in its package). A value already in the environment is kept.
        os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        # A simulated card computes on the host's cores: spinning threads would waste them.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.enable_mem_pattern = False  # a pattern keeps memory for every shape that ran
        options.log_severity_level = _ONLY_FATAL  # errors are raised as exceptions as well
        return cls(onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"]))

    @classmethod
    def shared(cls, digest: str, graph: bytes, threads: int) -> Graph:
        """Return the graph that all loaded models of the same content share, see `open`."""
        with _lock:
            found = _shared.get((digest, threads))
            if found is None:
                found = cls.open(graph, threads)
                _shared[digest, threads] = found
            return found

    def run(self, inputs: Sequence[Bound], outputs: Sequence[Bound]) -> None:
        """Execute once, in place. Raises onnxruntime's exceptions."""
        binding = self._bind(inputs)
        for each in outputs:
            element = _ELEMENTS[each.dtype]
            binding.bind_output(each.name, "cpu", 0, element, each.dims, each.address)
        self._session.run_with_iobinding(binding)

    def run_unsized(self, inputs: Sequence[Bound], names: Sequence[str]) -> list[Array]:
        """Execute once; return the outputs in new arrays, with the computed dims."""
        binding = self._bind(inputs)
        for name in names:
            binding.bind_output(name, "cpu")
        self._session.run_with_iobinding(binding)
        return [value.numpy() for value in binding.get_outputs()]

    def _bind(self, inputs: Sequence[Bound]) -> IOBinding:
        binding = self._session.io_binding()
        for each in inputs:
            element = _ELEMENTS[each.dtype]
            binding.bind_input(each.name, "cpu", 0, element, each.dims, each.address)
        return binding
