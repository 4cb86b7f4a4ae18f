"""The driver of a process's cards: the calls of `acl`, CANN's pyACL, that this package uses.

A call that fails, or cannot create a handle, raises DriverFault. Calls work in the calling thread's
current context, which the caller has to set (see `set_context`). They are synchronous unless their
description says otherwise. pyACL releases the GIL only while it waits: all other calls block all
Python threads.

Only this file and the files named pyacl_... depend on the form of pyACL's results. pyACL raises an
exception only for arguments of wrong types or numbers. Other errors are return codes, which are the
last element of the result. Some functions have no return code, and return 0, -1, "" or None on
failure.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from functools import cache
from typing import Final

from ge_runtime.errors import NoDevice
from ge_runtime.npu.driver.cann_values import (
    NOT_SUPPORTED,
    REPEAT_FINALIZE,
    REPEAT_INITIALIZE,
    SUCCESS,
    DriverFault,
    FailureKind,
    ModelDescription,
    ReturnCodeChecker,
)
from ge_runtime.npu.driver.driver import (
    UNKNOWN_CHIP,
    Address,
    Context,
    Copy,
    Dataset,
    Event,
    GearSetting,
    ModelId,
    Stream,
)
from ge_runtime.npu.driver.installation import import_cann_module
from ge_runtime.npu.driver.pyacl_models import (
    Acl,
    PyAclAipp,
    PyAclDescriptions,
    PyAclFreeShapes,
    PyAclMedia,
)

_HUGE_FIRST: Final = 0
"""ACL_MEM_MALLOC_HUGE_FIRST: pages of 2 MB for blocks above 1 MB, if available."""
_DDR, _HBM = 0, 1
_NORMAL: Final = 0
"""ACL_RT_DEVICE_STATUS_NORMAL."""
_UNITS: Final = ("cube", "vector", "aicpu", "memory")
_EVENT_SYNC: Final = 1
"""ACL_EVENT_SYNC: the event orders streams, and has no time line."""
_PINNED: Final = 0x10000000
"""ACL_HOST_REG_PINNED. `host_register` has only the flag MAPPED, which is not documented to lock
pages."""
_LAST_WITHOUT_REGISTERING: Final = (5, 10)
"""The last version of Linux for which CANN's documentation says that registering memory raises
exceptions unless `malloc_host` allocated the memory."""


def _linux() -> tuple[int, ...]:
    """Return the major and minor version of the kernel."""
    return tuple(map(int, platform.release().split(".")[:2]))


@cache
def open_driver() -> PyAclDriver:
    """Return the driver of this process. Raises NoDevice, with the fix, if it is missing."""
    try:
        acl = import_cann_module("acl")
    except ImportError as error:
        raise NoDevice(
            f"found no module `acl` ({error}), expected the module of CANN: run `source "
            "/usr/local/Ascend/cann/set_env.sh` before the server starts, or set_env.sh in the "
            "folder that CANN is installed in"
        ) from error
    return PyAclDriver(acl)


def open_media() -> PyAclMedia | None:
    """Return the functions of DVPP, in a process with a driver; None if pyACL lacks them."""
    acl = import_cann_module("acl")
    try:
        return PyAclMedia(acl, ReturnCodeChecker(acl.get_recent_err_msg))
    except AttributeError:
        return None


class PyAclDriver:
    """The driver of one `acl` module. Thread-safe. Raises DriverFault for each failed call."""

    def __init__(self, acl: Acl) -> None:
        """Initialize the driver with the module `acl` or a compatible one."""
        self._acl = acl
        self._rt = acl.rt
        self._mdl = acl.mdl
        checker = ReturnCodeChecker(acl.get_recent_err_msg)
        self._status = checker.status
        self._value = checker.value
        self._handle = checker.handle
        self._descriptions = PyAclDescriptions(acl, checker)
        self.captures: Final = PyAclCaptures(acl, checker)
        self.free_shapes: Final = PyAclFreeShapes(acl, checker, self._descriptions)
        self.aipp: Final = PyAclAipp(acl, checker)

    # -- process, device, context --

    def init(self) -> bool:
        """Initialize the driver.

        Returns:
            Whether this call initialized it; if not, `finalize` must not be called.
        """
        return self._status("acl.init", self._acl.init(), REPEAT_INITIALIZE) == SUCCESS

    def finalize(self) -> None:
        """Finalize the driver; may take two seconds to collect the device's logs."""
        try:
            # Reference-counted: ACL stays initialized for libraries that initialized it later,
            # e.g. torch_npu.
            answer = self._acl.finalize_reference()
        except AttributeError:
            self._status("acl.finalize", self._acl.finalize(), REPEAT_FINALIZE)
        else:
            self._value("acl.finalize_reference", answer, REPEAT_FINALIZE)

    def soc_name(self) -> str:
        """Return the chip's name, e.g. "Ascend910B3"; "unknown" if it is not reported."""
        # `get_soc_name` returns None on failure.
        return str(self._acl.get_soc_name() or UNKNOWN_CHIP)

    def set_device(self, device: int) -> None:
        """Use a device in this thread. Reference-counted, see `reset_device`."""
        self._status("acl.rt.set_device", self._rt.set_device(device))

    def reset_device(self, device: int) -> None:
        """Undo one `set_device`."""
        self._status("acl.rt.reset_device", self._rt.reset_device(device))

    def limit_operators(self, seconds: int) -> None:
        """Limit the time of each operator of this process. Needs a context."""
        try:
            code = self._rt.set_op_execute_time_out(seconds)
        except AttributeError:  # an old release
            code = NOT_SUPPORTED
        self._status("acl.rt.set_op_execute_time_out", code)

    def create_context(self, device: int) -> Context:
        """Create a context and make it current in this thread."""
        answer = self._rt.create_context(device)
        return Context(self._value("acl.rt.create_context", answer))

    def set_context(self, context: Context) -> None:
        """Make a context current in this thread."""
        self._status("acl.rt.set_context", self._rt.set_context(context))

    def current_context(self) -> Context | None:
        """Return the context that is current in this thread, or None.

        Never raises: contexts are also saved and restored around failures.
        """
        try:
            return Context(self._value("acl.rt.get_context", self._rt.get_context()))
        except DriverFault:
            return None

    def destroy_context(self, context: Context) -> None:
        """Destroy a context. It must not have streams, events or models any more."""
        self._status("acl.rt.destroy_context", self._rt.destroy_context(context))

    # -- streams --

    def create_stream(self) -> Stream:
        """Create a stream, a queue of tasks, in the current context."""
        return Stream(self._value("acl.rt.create_stream", self._rt.create_stream()))

    def synchronize_stream(self, stream: Stream, timeout_ms: int) -> None:
        """Wait for all tasks queued so far; raises the failure of the first failed task."""
        # This call releases the GIL; synchronize_device_with_timeout does not.
        code = self._rt.synchronize_stream_with_timeout(stream, timeout_ms)
        self._status("acl.rt.synchronize_stream_with_timeout", code)

    def destroy_stream(self, stream: Stream) -> None:
        """Destroy a stream. It must not have tasks any more."""
        self._status("acl.rt.destroy_stream", self._rt.destroy_stream(stream))

    def create_event(self) -> Event:
        """Create an event in the current context."""
        # CANN's guide prefers events without a time line, because a time line slows them down.
        try:
            answer = self._rt.create_event_ex_with_flag(_EVENT_SYNC)
        except AttributeError:  # before CANN 8.0
            return Event(self._value("acl.rt.create_event", self._rt.create_event()))
        return Event(self._value("acl.rt.create_event_ex_with_flag", answer))

    def record_event(self, event: Event, stream: Stream) -> None:
        """Queue the event in a stream."""
        self._status("acl.rt.record_event", self._rt.record_event(event, stream))

    def stream_wait_event(self, stream: Stream, event: Event) -> None:
        """Let later tasks of a stream wait for an event that was recorded."""
        self._status("acl.rt.stream_wait_event", self._rt.stream_wait_event(stream, event))

    def destroy_event(self, event: Event) -> None:
        """Destroy an event that no stream waits for."""
        self._status("acl.rt.destroy_event", self._rt.destroy_event(event))

    # -- memory --

    def memory_info(self) -> tuple[int, int]:
        """Return free and total bytes. A card has HBM or DDR, and reports 0 for the missing one."""
        for kind in (_HBM, _DDR):  # 310P and 310B have DDR, the 910 family HBM
            free, total, code = self._rt.get_mem_info(kind)
            self._status("acl.rt.get_mem_info", code)
            if total:
                break
        return int(free), int(total)

    def is_healthy(self, device: int) -> bool:
        """Return whether a device reports a normal state; True if it does not report a state."""
        try:
            answer = self._rt.query_device_status(device)
            return bool(self._value("acl.rt.query_device_status", answer) == _NORMAL)
        except AttributeError:  # older releases lack it
            return True
        except DriverFault as fault:
            if fault.code == NOT_SUPPORTED:
                return True
            raise

    def utilization(self, device: int) -> dict[str, int]:
        """Return the utilization of each unit of a device, in percent; empty if not reported."""
        try:
            answer = self._rt.get_device_utilization_rate(device)
            rates = self._value("acl.rt.get_device_utilization_rate", answer)
        except AttributeError:
            return {}
        except DriverFault as fault:
            if fault.kind is FailureKind.LOST:
                raise
            return {}  # optional: not every chip reports utilization
        # The documentation names the units, but not the keys.
        return {
            unit: int(percent)
            for unit in _UNITS
            for key, percent in rates.items()
            if unit in key.lower() and 0 <= percent <= 100
        }

    def malloc(self, nbytes: int) -> Address:
        """Allocate device memory, aligned to 64 bytes."""
        return Address(self._value("acl.rt.malloc", self._rt.malloc(nbytes, _HUGE_FIRST)))

    def free(self, address: Address) -> None:
        """Free device memory immediately: no task may use it any more."""
        self._status("acl.rt.free", self._rt.free(address))

    def malloc_host(self, nbytes: int) -> Address:
        """Allocate pinned host memory, aligned to 64 bytes."""
        return Address(self._value("acl.rt.malloc_host", self._rt.malloc_host(nbytes)))

    def free_host(self, address: Address) -> None:
        """Free pinned host memory immediately."""
        self._status("acl.rt.free_host", self._rt.free_host(address))

    def host_register(self, address: Address, nbytes: int) -> None:
        """Pin whole pages of existing host memory. Not supported by every chip and system."""
        if _linux() <= _LAST_WITHOUT_REGISTERING:
            found = f"found Linux {platform.release()}, expected a version above 5.10"
            raise DriverFault("acl.rt.host_register_v2", NOT_SUPPORTED, found)
        try:
            code = self._rt.host_register_v2(address, nbytes, _PINNED)
        except AttributeError:
            code = NOT_SUPPORTED
        self._status("acl.rt.host_register_v2", code)

    def host_unregister(self, address: Address) -> None:
        """Undo `host_register`."""
        self._status("acl.rt.host_unregister", self._rt.host_unregister(address))

    def copy(self, target: Address, room: int, source: Address, nbytes: int, kind: Copy) -> None:
        """Copy synchronously between host and device, or within the device.

        Blocks all Python threads. `room` is the size of the target in bytes; larger copies fail.
        """
        code = self._rt.memcpy(target, room, source, nbytes, kind.value)
        self._status("acl.rt.memcpy", code)

    def copy_async(
        self, target: Address, room: int, source: Address, nbytes: int, kind: Copy, stream: Stream
    ) -> None:
        """Queue a copy. Host memory must be pinned, and both addresses multiples of 64."""
        code = self._rt.memcpy_async(target, room, source, nbytes, kind.value, stream)
        self._status("acl.rt.memcpy_async", code)

    # -- models --

    def model_sizes(self, path: str) -> tuple[int, int]:
        """Return the sizes in bytes of a model's workspace and of its weights.

        The size of the workspace is 0 for a model with free shapes.
        """
        workspace, weights, code = self._mdl.query_size(path)
        self._status("acl.mdl.query_size", code)
        return int(workspace), int(weights)

    def load(
        self, path: str, workspace: tuple[Address, int], weights: tuple[Address, int]
    ) -> ModelId:
        """Load a model into memory of the caller; the weights are written to `weights`.

        Takes seconds and blocks all Python threads.
        """
        answer = self._mdl.load_from_file_with_mem(path, *workspace, *weights)
        return ModelId(self._value("acl.mdl.load_from_file_with_mem", answer))

    def unload(self, model: ModelId) -> None:
        """Unload a model, which must not be executing. Does not free its memory."""
        self._status("acl.mdl.unload", self._mdl.unload(model))

    def describe(self, model: ModelId, *, free_shapes: bool = False) -> ModelDescription:
        """Return the description of a model; unknown sizes of free shapes are 0 bytes."""
        return self._descriptions.describe(model, free_shapes=free_shapes)

    def output_dims(self, model: ModelId, count: int) -> list[tuple[int, ...]]:
        """Return the dims of the first `count` outputs at the gear that was set last."""
        return self._descriptions.output_dims(model, count)

    # -- executions --

    def create_dataset(self, buffers: Sequence[tuple[Address, int]]) -> Dataset:
        """Create a dataset.

        Args:
            buffers: (address, bytes) of device memory, in the order of the model's tensors.
        """
        acl, mdl = self._acl, self._mdl
        handle = self._handle("acl.mdl.create_dataset", mdl.create_dataset())
        handles: list[int] = []
        try:
            for address, nbytes in buffers:
                buffer = acl.create_data_buffer(address, nbytes)
                handles.append(self._handle("acl.create_data_buffer", buffer))
                # The result is the dataset and the return code.
                self._value(
                    "acl.mdl.add_dataset_buffer", mdl.add_dataset_buffer(handle, handles[-1])
                )
        except DriverFault:
            self.destroy_dataset(Dataset(handle, tuple(handles)))
            raise
        return Dataset(handle, tuple(handles))

    def destroy_dataset(self, dataset: Dataset) -> None:
        """Destroy a dataset. Does not free the memory."""
        self._status("acl.mdl.destroy_dataset", self._mdl.destroy_dataset(dataset.handle))
        # A dataset does not own its buffers, and neither owns the memory.
        for buffer in dataset.buffers:
            self._status("acl.destroy_data_buffer", self._acl.destroy_data_buffer(buffer))

    def set_gear(self, model: ModelId, inputs: Dataset, index: int, gear: GearSetting) -> None:
        """Write a gear into the buffer of input `index`, synchronously and not in a stream."""
        mdl, dataset = self._mdl, inputs.handle
        if gear.family == "batch":
            code = mdl.set_dynamic_batch_size(model, dataset, index, *gear.values)
            self._status("acl.mdl.set_dynamic_batch_size", code)
        elif gear.family == "image":
            code = mdl.set_dynamic_hw_size(model, dataset, index, *gear.values)
            self._status("acl.mdl.set_dynamic_hw_size", code)
        else:
            # A list: the binding raises TypeError for a tuple.
            dims = {"name": "", "dimCount": len(gear.values), "dims": list(gear.values)}
            code = mdl.set_input_dynamic_dims(model, dataset, index, dims)
            self._status("acl.mdl.set_input_dynamic_dims", code)

    def execute_async(
        self, model: ModelId, inputs: Dataset, outputs: Dataset, stream: Stream
    ) -> None:
        """Queue an execution."""
        code = self._mdl.execute_async(model, inputs.handle, outputs.handle, stream)
        self._status("acl.mdl.execute_async", code)


_DATA: Final = 0x1 | 0x2 | 0x4
"""ACL_PROF_ACL_API, TASK_TIME and AICORE_METRICS; without the last, metrics are ignored."""


class PyAclCaptures:
    """The functions for profiles (acl.prof) and dumps (acl.mdl)."""

    def __init__(self, acl: Acl, checker: ReturnCodeChecker) -> None:
        """Initialize the captures; an old `acl` may lack `acl.prof`."""
        self._prof: Acl = getattr(acl, "prof", None)
        self._mdl = acl.mdl
        self._status = checker.status
        self._handle = checker.handle

    def init_profile(self, folder: str) -> None:
        """Write profiles below `folder`; call before the profiled models are loaded."""
        self._status("acl.prof.init", self._prof.init(folder))

    def start_profile(self, device: int, metrics: int) -> int:
        """Start to profile a device.

        Args:
            device: Number of the device.
            metrics: A value of aclprofAicoreMetrics.

        Returns:
            The argument of `stop_profile`.
        """
        # The third argument, AI Core events, is reserved: 0.
        config = self._prof.create_config([device], metrics, 0, _DATA)
        config = self._handle("acl.prof.create_config", config)
        try:
            self._status("acl.prof.start", self._prof.start(config))
        except DriverFault:
            self._prof.destroy_config(config)
            raise
        return config

    def stop_profile(self, config: int) -> None:
        """Stop a profile; `config` is the result of `start_profile`."""
        try:
            self._status("acl.prof.stop", self._prof.stop(config))
        finally:
            code = self._prof.destroy_config(config)
        self._status("acl.prof.destroy_config", code)

    def finalize_profile(self) -> None:
        """Undo `init_profile`."""
        self._status("acl.prof.finalize", self._prof.finalize())

    def start_dump(self, config: str) -> None:
        """Dump models that are loaded from now on; `config` is the path of a JSON file."""
        self._status("acl.mdl.init_dump", self._mdl.init_dump())
        try:
            self._status("acl.mdl.set_dump", self._mdl.set_dump(config))
        except DriverFault:
            self._mdl.finalize_dump()
            raise

    def stop_dump(self) -> None:
        """Do not dump models that are loaded from now on."""
        self._status("acl.mdl.finalize_dump", self._mdl.finalize_dump())
