"""The driver by the module `acl`, CANN's pyACL.

No files but this and those named pyacl_... know the shapes of its answers. pyACL raises for
arguments of wrong types or counts alone: all else is a return code, the last of what comes back.
Some functions have none, and fail with 0, -1, "" or None.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from functools import cache
from typing import Final

from ge_runtime.errors import NoDevice
from ge_runtime.npu.driver.description import ModelDescription
from ge_runtime.npu.driver.driver import (
    UNKNOWN_CHIP,
    Address,
    Captures,
    Context,
    Copy,
    Dataset,
    Driver,
    Event,
    FreeShapes,
    GearSetting,
    ModelId,
    Stream,
)
from ge_runtime.npu.driver.installation import import_cann_module
from ge_runtime.npu.driver.media import MediaCalls
from ge_runtime.npu.driver.pyacl_aipp import PyAclAipp
from ge_runtime.npu.driver.pyacl_captures import PyAclCaptures
from ge_runtime.npu.driver.pyacl_description import Acl, PyAclDescriptions
from ge_runtime.npu.driver.pyacl_free_shapes import PyAclFreeShapes
from ge_runtime.npu.driver.pyacl_media import PyAclMedia
from ge_runtime.npu.driver.return_codes import (
    NOT_SUPPORTED,
    REPEAT_FINALIZE,
    REPEAT_INITIALIZE,
    SUCCESS,
    DriverFault,
    FailureKind,
    ReturnCodeChecker,
)

_HUGE_FIRST: Final = 0
"""Policy: pages of 2 MB where a block is larger than 1 MB and there are any."""
_DDR, _HBM = 0, 1
_NORMAL: Final = 0
"""ACL_RT_DEVICE_STATUS_NORMAL."""
_UNITS: Final = ("cube", "vector", "aicpu", "memory")
_PINNED: Final = 0x10000000
"""ACL_HOST_REG_PINNED. MAPPED, all that host_register has, is not said to lock pages."""
_LAST_WITHOUT_REGISTERING: Final = (5, 10)
"""Linux: registering what was not allocated by malloc_host is documented to raise exceptions."""


def _linux() -> tuple[int, ...]:
    """Its version, as far as it matters here."""
    return tuple(map(int, platform.release().split(".")[:2]))


@cache
def open_driver() -> Driver:
    """The driver of this process. Raises NoDevice, with the cure, where there is none."""
    try:
        acl = import_cann_module("acl")
    except ImportError as error:
        raise NoDevice(
            f"found no module `acl` ({error}), expected CANN's: run `source "
            "/usr/local/Ascend/cann/set_env.sh` before the server starts, or of the folder that "
            "CANN is installed in"
        ) from error
    return PyAclDriver(acl)


def open_media() -> MediaCalls | None:
    """DVPP's calls, of a process that has a driver; None where pyACL has none."""
    acl = import_cann_module("acl")
    try:
        return PyAclMedia(acl, ReturnCodeChecker(acl.get_recent_err_msg))
    except AttributeError:
        return None


class PyAclDriver:
    """Driver by the functions of one `acl` module, each answer checked."""

    def __init__(self, acl: Acl) -> None:
        """acl: the module, or one that keeps its contract."""
        self._acl = acl
        self._rt = acl.rt
        self._mdl = acl.mdl
        checker = ReturnCodeChecker(acl.get_recent_err_msg)
        self._status = checker.status
        self._value = checker.value
        self._handle = checker.handle
        self._descriptions = PyAclDescriptions(acl, checker)
        self.captures: Final[Captures] = PyAclCaptures(acl, checker)
        self.free_shapes: Final[FreeShapes] = PyAclFreeShapes(acl, checker, self._descriptions)
        self.aipp: Final = PyAclAipp(acl, checker)

    # -- process, device, context --

    def init(self) -> bool:
        return self._status("acl.init", self._acl.init(), REPEAT_INITIALIZE) == SUCCESS

    def finalize(self) -> None:
        try:
            # It counts, so those who began ACL after us go on, as torch_npu may.
            answer = self._acl.finalize_reference()
        except AttributeError:
            self._status("acl.finalize", self._acl.finalize(), REPEAT_FINALIZE)
        else:
            self._value("acl.finalize_reference", answer, REPEAT_FINALIZE)

    def soc_name(self) -> str:
        """Where the function fails it answers None."""
        return str(self._acl.get_soc_name() or UNKNOWN_CHIP)

    def set_device(self, device: int) -> None:
        self._status("acl.rt.set_device", self._rt.set_device(device))

    def reset_device(self, device: int) -> None:
        self._status("acl.rt.reset_device", self._rt.reset_device(device))

    def create_context(self, device: int) -> Context:
        answer = self._rt.create_context(device)
        return Context(self._value("acl.rt.create_context", answer))

    def set_context(self, context: Context) -> None:
        self._status("acl.rt.set_context", self._rt.set_context(context))

    def current_context(self) -> Context:
        return Context(self._value("acl.rt.get_context", self._rt.get_context()))

    def destroy_context(self, context: Context) -> None:
        self._status("acl.rt.destroy_context", self._rt.destroy_context(context))

    # -- streams --

    def create_stream(self) -> Stream:
        return Stream(self._value("acl.rt.create_stream", self._rt.create_stream()))

    def synchronize_stream(self, stream: Stream, timeout_ms: int) -> None:
        # One of the few calls that release the GIL; synchronize_device_with_timeout does not.
        code = self._rt.synchronize_stream_with_timeout(stream, timeout_ms)
        self._status("acl.rt.synchronize_stream_with_timeout", code)

    def destroy_stream(self, stream: Stream) -> None:
        self._status("acl.rt.destroy_stream", self._rt.destroy_stream(stream))

    def create_event(self) -> Event:
        return Event(self._value("acl.rt.create_event", self._rt.create_event()))

    def record_event(self, event: Event, stream: Stream) -> None:
        self._status("acl.rt.record_event", self._rt.record_event(event, stream))

    def stream_wait_event(self, stream: Stream, event: Event) -> None:
        self._status("acl.rt.stream_wait_event", self._rt.stream_wait_event(stream, event))

    def destroy_event(self, event: Event) -> None:
        self._status("acl.rt.destroy_event", self._rt.destroy_event(event))

    # -- memory --

    def memory_info(self) -> tuple[int, int]:
        """A card has HBM or DDR; of the other it tells 0 bytes."""
        for kind in (_HBM, _DDR):  # 310P and 310B have DDR, the 910 family HBM
            free, total, code = self._rt.get_mem_info(kind)
            self._status("acl.rt.get_mem_info", code)
            if total:
                break
        return int(free), int(total)

    def is_well(self, device: int) -> bool:
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
        try:
            answer = self._rt.get_device_utilization_rate(device)
            rates = self._value("acl.rt.get_device_utilization_rate", answer)
        except AttributeError:
            return {}
        except DriverFault as fault:
            if fault.kind is FailureKind.LOST:
                raise
            return {}  # no figure is worth more than that: not every chip has them
        # No document that was read names the keys, but what they are of.
        return {
            unit: int(percent)
            for unit in _UNITS
            for key, percent in rates.items()
            if unit in key.lower() and 0 <= percent <= 100
        }

    def malloc(self, nbytes: int) -> Address:
        return Address(self._value("acl.rt.malloc", self._rt.malloc(nbytes, _HUGE_FIRST)))

    def free(self, address: Address) -> None:
        self._status("acl.rt.free", self._rt.free(address))

    def malloc_host(self, nbytes: int) -> Address:
        return Address(self._value("acl.rt.malloc_host", self._rt.malloc_host(nbytes)))

    def free_host(self, address: Address) -> None:
        self._status("acl.rt.free_host", self._rt.free_host(address))

    def host_register(self, address: Address, nbytes: int) -> None:
        if _linux() <= _LAST_WITHOUT_REGISTERING:
            found = f"found Linux {platform.release()}"
            raise DriverFault("acl.rt.host_register_v2", NOT_SUPPORTED, found)
        try:
            code = self._rt.host_register_v2(address, nbytes, _PINNED)
        except AttributeError:
            code = NOT_SUPPORTED
        self._status("acl.rt.host_register_v2", code)

    def host_unregister(self, address: Address) -> None:
        self._status("acl.rt.host_unregister", self._rt.host_unregister(address))

    def copy(self, target: Address, room: int, source: Address, nbytes: int, kind: Copy) -> None:
        code = self._rt.memcpy(target, room, source, nbytes, kind.value)
        self._status("acl.rt.memcpy", code)

    def copy_async(
        self,
        target: Address,
        room: int,
        source: Address,
        nbytes: int,
        kind: Copy,
        stream: Stream,
    ) -> None:
        code = self._rt.memcpy_async(target, room, source, nbytes, kind.value, stream)
        self._status("acl.rt.memcpy_async", code)

    # -- models --

    def model_sizes(self, path: str) -> tuple[int, int]:
        workspace, weights, code = self._mdl.query_size(path)
        self._status("acl.mdl.query_size", code)
        return int(workspace), int(weights)

    def load(
        self,
        path: str,
        workspace: tuple[Address, int],
        weights: tuple[Address, int],
    ) -> ModelId:
        answer = self._mdl.load_from_file_with_mem(path, *workspace, *weights)
        return ModelId(self._value("acl.mdl.load_from_file_with_mem", answer))

    def unload(self, model: ModelId) -> None:
        self._status("acl.mdl.unload", self._mdl.unload(model))

    def describe(self, model: ModelId, *, free_shapes: bool = False) -> ModelDescription:
        return self._descriptions.describe(model, free_shapes=free_shapes)

    def output_dims(self, model: ModelId, count: int) -> list[tuple[int, ...]]:
        return self._descriptions.output_dims(model, count)

    # -- executions --

    def create_dataset(self, buffers: Sequence[tuple[Address, int]]) -> Dataset:
        acl, mdl = self._acl, self._mdl
        handle = self._handle("acl.mdl.create_dataset", mdl.create_dataset())
        made: list[int] = []
        try:
            for address, nbytes in buffers:
                buffer = acl.create_data_buffer(address, nbytes)
                made.append(self._handle("acl.create_data_buffer", buffer))
                # It gives back the dataset, and then its code.
                self._value("acl.mdl.add_dataset_buffer", mdl.add_dataset_buffer(handle, made[-1]))
        except DriverFault:
            self.destroy_dataset(Dataset(handle, tuple(made)))
            raise
        return Dataset(handle, tuple(made))

    def destroy_dataset(self, dataset: Dataset) -> None:
        self._status("acl.mdl.destroy_dataset", self._mdl.destroy_dataset(dataset.handle))
        # A dataset lists its buffers and does not own them; neither owns the memory.
        for buffer in dataset.buffers:
            self._status("acl.destroy_data_buffer", self._acl.destroy_data_buffer(buffer))

    def set_gear(self, model: ModelId, inputs: Dataset, index: int, gear: GearSetting) -> None:
        mdl, dataset = self._mdl, inputs.handle
        if gear.family == "batch":
            code = mdl.set_dynamic_batch_size(model, dataset, index, *gear.values)
            self._status("acl.mdl.set_dynamic_batch_size", code)
        elif gear.family == "image":
            code = mdl.set_dynamic_hw_size(model, dataset, index, *gear.values)
            self._status("acl.mdl.set_dynamic_hw_size", code)
        else:
            # A list of Python's own ints: of a tuple the binding raises TypeError.
            dims = {"name": "", "dimCount": len(gear.values), "dims": list(gear.values)}
            code = mdl.set_input_dynamic_dims(model, dataset, index, dims)
            self._status("acl.mdl.set_input_dynamic_dims", code)

    def execute_async(
        self, model: ModelId, inputs: Dataset, outputs: Dataset, stream: Stream
    ) -> None:
        code = self._mdl.execute_async(model, inputs.handle, outputs.handle, stream)
        self._status("acl.mdl.execute_async", code)
