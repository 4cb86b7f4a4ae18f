"""acl.util: conversions between Python objects and host addresses."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ascend_simulator import process
from ascend_simulator.calls import I32, U64, bare, status, value
from ascend_simulator.codes import NPY_DTYPES, Code, Refused
from ascend_simulator.memory.addresses import Borrowed
from ascend_simulator.violations import declare, violate

DEPRECATED = declare(
    "util.deprecated",
    "numpy_to_ptr and ptr_to_numpy are deprecated on the device; use ctypes instead.",
    caution=True,
)
NOT_CONTIGUOUS = declare(
    "util.not-contiguous", "Arrays for numpy_to_ptr must be contiguous.", caution=True
)


def _array(given: object) -> NDArray[Any]:
    if not isinstance(given, np.ndarray):
        raise ValueError(f"an ndarray is required (found {type(given).__name__})")
    return given


def _bytes(given: object) -> bytes:
    if not isinstance(given, bytes):
        raise ValueError(f"a bytes object is required (found {type(given).__name__})")
    return given


def _shape(given: object) -> tuple[int, ...]:
    if not isinstance(given, tuple):
        raise TypeError(f"a tuple is required (found {type(given).__name__})")
    return tuple(map(U64, given))


def _as_given(given: object) -> object:
    return given


@bare("util.numpy_to_ptr", _array, anytime=True)
def numpy_to_ptr(array: NDArray[Any]) -> int:
    """Return the address of the array's first byte; the caller keeps the array alive.

    Each call violates the caution DEPRECATED. Checks NOT_CONTIGUOUS.
    """
    violate(DEPRECATED, "numpy_to_ptr: use array.ctypes.data")
    if not array.flags.c_contiguous:
        violate(NOT_CONTIGUOUS, f"numpy_to_ptr: found strides {array.strides}")
    process.current().part(Borrowed).lend_array(array)
    return array.ctypes.data


@bare("util.numpy_contiguous_to_ptr", _array, anytime=True)
def numpy_contiguous_to_ptr(array: NDArray[Any]) -> tuple[int, NDArray[Any]]:
    """Return the address of a contiguous array, and the array, which is a copy if necessary."""
    contiguous = np.ascontiguousarray(array)
    process.current().part(Borrowed).lend_array(contiguous)
    return contiguous.ctypes.data, contiguous


@bare("util.bytes_to_ptr", _bytes, anytime=True)
def bytes_to_ptr(given: bytes) -> int:
    """Return the address of the first byte. The caller keeps the object and must not write."""
    address: int = np.frombuffer(given, np.uint8).ctypes.data
    process.current().part(Borrowed).lend(given, address)
    return address


@bare("util.ptr_to_bytes", U64, U64, failed=b"", anytime=True)
def ptr_to_bytes(ptr: int, size: int) -> bytes:
    """Return a copy of host memory. Checks the rules of `AddressSpace.locate` and `Borrowed`."""
    now = process.current()
    now.part(Borrowed).check(ptr, size, "ptr_to_bytes")
    now.claims.host_access(ptr, size, write=False, what="ptr_to_bytes")
    return now.memory.resolve(ptr, size, want="host", write=False, what="ptr_to_bytes").tobytes()


@bare("util.ptr_to_numpy", U64, _shape, I32, failed=None, anytime=True)
def ptr_to_numpy(ptr: int, shape: tuple[int, ...], npy_type: int) -> NDArray[Any]:
    """Return a view of host memory, which does not keep the memory alive.

    Each call violates the caution DEPRECATED. Checks the rules of `AddressSpace.locate`. Raises
    ValueError for an unknown type.
    """
    violate(DEPRECATED, "ptr_to_numpy: use ctypes and numpy.frombuffer")
    if npy_type not in NPY_DTYPES:
        raise ValueError(f"NumPy type: found {npy_type}, expected one of {sorted(NPY_DTYPES)}")
    dtype = np.dtype(NPY_DTYPES[npy_type])
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    memory = process.current().memory
    view = memory.resolve(ptr, nbytes, want="host", write=True, what="ptr_to_numpy")
    return view.view(dtype).reshape(shape)


class _Helper(threading.Thread):
    """A thread that stores the exception of its function."""

    def __init__(self, function: Callable[[list[Any]], object], arguments: list[Any]) -> None:
        super().__init__(name="acl helper", daemon=True)
        self._function = function
        self._arguments = arguments
        self.raised: BaseException | None = None

    def run(self) -> None:
        try:
            self._function(self._arguments)
        except BaseException as error:
            self.raised = error


class _Helpers:
    """The threads of start_thread: a `Part` of the process."""

    def __init__(self) -> None:
        self.threads: dict[int, _Helper] = {}

    def live(self) -> list[str]:
        """Return the names of the threads that were not stopped."""
        return [thread.name for thread in self.threads.values()]

    def close(self) -> None:
        """Do nothing: the threads end by themselves."""


@value("util.start_thread", _as_given, _as_given, anytime=True, releases_gil=True)
def start_thread(function: Callable[[list[Any]], object], arguments: list[Any]) -> int:
    """Run `function(arguments)` on a new thread; return the system's thread id."""
    thread = _Helper(function, arguments)
    thread.start()
    assert thread.ident is not None
    process.current().part(_Helpers).threads[thread.ident] = thread
    return thread.ident


@status("util.stop_thread", U64, anytime=True, releases_gil=True)
def stop_thread(thread_id: int) -> None:
    """Wait until the thread's function has returned. Refused: INVALID_PARAM if unknown.

    Raises RuntimeError if the function raised.
    """
    thread = process.current().part(_Helpers).threads.pop(thread_id, None)
    if thread is None:
        raise Refused(
            Code.INVALID_PARAM, f"stop_thread: {thread_id:#x}: not a running helper thread"
        )
    thread.join()
    if thread.raised is not None:
        raise RuntimeError(f"stop_thread: the thread raised {thread.raised!r}") from thread.raised
