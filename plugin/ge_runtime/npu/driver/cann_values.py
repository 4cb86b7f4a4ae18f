"""Values of CANN: return codes, with their exception, and the description of a compiled model.

The numbers are CANN's (acl_base_rt.h, ge_error_codes.h). The classification of codes is derived
from their documentation and was not verified on a device; in doubt it assumes the more severe
failure. A description names a model's tensors, and the gears that it was compiled for.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final, TypeVar

from ge_runtime.errors import RuntimeFault
from ge_runtime.specs import DType

SUCCESS: Final = 0
REPEAT_INITIALIZE: Final = 100002
"""acl.init was called before. Not a failure, but acl.finalize must not be called."""
REPEAT_FINALIZE: Final = 100037
"""acl.finalize was called before. Not a failure."""
NOT_SUPPORTED: Final = 207000
"""The chip, driver or system does not support the call."""

# Codes for functions that have no return code.
_NO_HANDLE: Final = 200000
"""BAD_ALLOC, for functions that create objects: such functions only allocate host memory."""
_NO_ANSWER: Final = 100000
"""INVALID_PARAM, for getters."""


class FailureKind(Enum):
    """The consequence of a failure."""

    REFUSED = "a call that the interface refuses"
    """A repeated call fails as well: a defect of the caller or of the user's input."""
    FILE = "a file that cannot be executed here"
    MEMORY = "too little memory"
    RETRY = "a queue that is temporarily full"
    """A repeated call may succeed."""
    RELOAD = "a failed execution"
    """The stream and its context are invalid; a new context with reloaded models is required."""
    OVERFLOW = "a numeric overflow"
    """The execution has ended, and its results are invalid."""
    LOST = "the device is lost"
    """The process must not use or release anything on the device, because calls may hang."""


_KINDS: Final = {
    FailureKind.FILE: (
        *(100003, 100005, 100011, 100012, 100013, 100014, 100015),
        *(145002, 145006, 148049, 148050, 200001, 507008),
        *(545001, 545002, 545003, 545004, 545005),
    ),
    # Includes the limits of a card for events, streams and models.
    FailureKind.MEMORY: (
        *(200000, 207001, 207005, 207007, 207008, 207009, 207010, 207011, 207012, 207018),
        245000,
    ),
    FailureKind.RETRY: (207014, 507002, 507004, 507006),
    FailureKind.OVERFLOW: (207003, 207016, 207017),
    # The device does not respond, or its memory or channel (507901) is broken. Includes timeouts:
    # tasks that still run may write to their buffers at any time, and cannot be stopped.
    FailureKind.LOST: (
        *(107019, 107020, 207020, 500004, 507010, 507033, 507046, 507047, 507053, 507054),
        *(507055, 507899, 507901, 545601),
    ),
}
_KIND_OF: Final = {code: kind for kind, codes in _KINDS.items() for code in codes}
_ABORTED: Final = (107022, 107023)
_INTERNAL: Final = 5
"""The first digit of failures inside the device, its driver or its firmware."""

_NAMES: Final = {
    100000: "ACL_ERROR_INVALID_PARAM",
    100001: "ACL_ERROR_UNINITIALIZE",
    100003: "ACL_ERROR_INVALID_FILE",
    100012: "ACL_ERROR_DESERIALIZE_MODEL",
    100013: "ACL_ERROR_PARSE_MODEL",
    100039: "ACL_ERROR_COMPILING_STUB_MODE",
    107000: "ACL_ERROR_RT_PARAM_INVALID",
    107001: "ACL_ERROR_RT_INVALID_DEVICEID",
    107002: "ACL_ERROR_RT_CONTEXT_NULL",
    107003: "ACL_ERROR_RT_STREAM_CONTEXT",
    107019: "ACL_ERROR_RT_WAIT_TIMEOUT",
    107020: "ACL_ERROR_RT_TASK_TIMEOUT",
    145000: "ACL_ERROR_GE_PARAM_INVALID",
    145002: "ACL_ERROR_GE_EXEC_MODEL_PATH_INVALID",
    145003: "ACL_ERROR_GE_EXEC_MODEL_ID_INVALID",
    145006: "ACL_ERROR_GE_EXEC_MODEL_DATA_SIZE_INVALID",
    145012: "ACL_ERROR_GE_DYNAMIC_INPUT_LENGTH_INVALID",
    145013: "ACL_ERROR_GE_DYNAMIC_BATCH_SIZE_INVALID",
    148049: "ACL_ERROR_INVALID_OPP_PATH",
    200000: "ACL_ERROR_BAD_ALLOC",
    200001: "ACL_ERROR_API_NOT_SUPPORT",
    207000: "ACL_ERROR_RT_FEATURE_NOT_SUPPORT",
    207001: "ACL_ERROR_RT_MEMORY_ALLOCATION",
    207003: "ACL_ERROR_RT_AICORE_OVER_FLOW",
    207004: "ACL_ERROR_RT_NO_DEVICE",
    207005: "ACL_ERROR_RT_RESOURCE_ALLOC_FAIL",
    207006: "ACL_ERROR_RT_NO_PERMISSION",
    207007: "ACL_ERROR_RT_NO_EVENT_RESOURCE",
    207008: "ACL_ERROR_RT_NO_STREAM_RESOURCE",
    207016: "ACL_ERROR_RT_AIVEC_OVER_FLOW",
    207017: "ACL_ERROR_RT_OVER_FLOW",
    207009: "ACL_ERROR_RT_NO_NOTIFY_RESOURCE",
    207010: "ACL_ERROR_RT_NO_MODEL_RESOURCE",
    207018: "ACL_ERROR_RT_DEVICE_OOM",
    207020: "ACL_ERROR_RT_TIMEOUT",
    245000: "ACL_ERROR_GE_MEMORY_ALLOCATION",
    500001: "ACL_ERROR_FAILURE",
    500002: "ACL_ERROR_GE_FAILURE",
    507002: "ACL_ERROR_RT_STREAM_TASK_FULL",
    507008: "ACL_ERROR_RT_SOC_VERSION",
    507010: "ACL_ERROR_RT_LOST_HEARTBEAT",
    507011: "ACL_ERROR_RT_MODEL_EXECUTE",
    507014: "ACL_ERROR_RT_AICORE_TIMEOUT",
    507015: "ACL_ERROR_RT_AICORE_EXCEPTION",
    507017: "ACL_ERROR_RT_AICPU_TIMEOUT",
    507018: "ACL_ERROR_RT_AICPU_EXCEPTION",
    507033: "ACL_ERROR_RT_DEV_SETUP_ERROR",
    507034: "ACL_ERROR_RT_VECTOR_CORE_TIMEOUT",
    507035: "ACL_ERROR_RT_VECTOR_CORE_EXCEPTION",
    507046: "ACL_ERROR_RT_STREAM_SYNC_TIMEOUT",
    507047: "ACL_ERROR_RT_EVENT_SYNC_TIMEOUT",
    507048: "ACL_ERROR_RT_FFTS_PLUS_TIMEOUT",
    507049: "ACL_ERROR_RT_FFTS_PLUS_EXCEPTION",
    507053: "ACL_ERROR_RT_DEVICE_MEM_ERROR",
    507054: "ACL_ERROR_RT_HBM_MULTI_BIT_ECC_ERROR",
    507055: "ACL_ERROR_RT_SUSPECT_DEVICE_MEM_ERROR",
    507056: "ACL_ERROR_RT_LINK_ERROR",
    507057: "ACL_ERROR_RT_SUSPECT_REMOTE_ERROR",
    507899: "ACL_ERROR_RT_DRV_INTERNAL_ERROR",
    507901: "ACL_ERROR_RT_SOCKET_CLOSE",
}
"""CANN's names of common codes, by code."""


def failure_kind(code: int) -> FailureKind:
    """Classify a return code other than SUCCESS."""
    if code in _KIND_OF:
        return _KIND_OF[code]
    internal = code // 100_000 == _INTERNAL
    # Unlisted codes: failures of the device require a reset, rejected calls do not.
    return FailureKind.RELOAD if internal or code in _ABORTED else FailureKind.REFUSED


def code_name(code: int) -> str:
    """Return the number, and CANN's name for common codes."""
    return f"{code} {_NAMES[code]}" if code in _NAMES else str(code)


Value = TypeVar("Value")

_OVERFLOWED: Final = (
    "an FP16 result was too large: compile with `--precision origin` if the chip supports it, else "
    "with `--precision cube_fp16in_fp32out`"
)

_USED_UP: Final = (
    "the device's streams, events, notifies or queues are used up, maybe by other processes "
    "(EE1023): run fewer models, instances or processes on the device"
)
_OTHER_VERSION: Final = (
    "the driver may be older than CANN: `npu-smi info`, `cat $ASCEND_HOME_PATH/version.cfg`"
)

_CURES: Final = {
    100039: "LD_LIBRARY_PATH has CANN's `stub` folder before the driver's libraries: "
    "`source set_env.sh` of CANN again",
    107001: "`npu-smi info` and ASCEND_RT_VISIBLE_DEVICES show which devices this process has",
    148049: "install the operators of this chip: the package Ascend-cann-<soc>-ops",
    207004: "pass the device into the container, e.g. `--device /dev/davinci0`",
    207006: "add the user to the group HwHiAiUser",
    207005: _USED_UP,
    207007: _USED_UP,
    207008: _USED_UP,
    207009: _USED_UP,
    507008: "the file is for another chip, or the package Ascend-cann-<soc>-ops is missing, or "
    f"{_OTHER_VERSION}",
    207003: _OVERFLOWED,
    207016: _OVERFLOWED,
    207017: _OVERFLOWED,
    **dict.fromkeys(
        (507014, 507017), "if the operator needs more time, increase operator_timeout_s"
    ),
    507046: "if the execution needs more time, increase execution_timeout_s",
    507033: "another process or container may use the device or its die, the package "
    "Ascend-cann-<soc>-ops may be missing, the user may not be in the group HwHiAiUser, or "
    f"{_OTHER_VERSION}",
    507054: "the device's memory is defective: do not use the device, `npu-smi info -t ecc -i 0`",
    507899: _OTHER_VERSION,
}
"""Fixes that a user can apply, by code."""


class DriverFault(RuntimeFault):
    """A failed call of the driver."""

    def __init__(self, function: str, code: int, message: str = "") -> None:
        """Create the error of a function, e.g. "acl.rt.malloc"; `message` is the library's."""
        self.function = function
        self.code = code
        self.kind: FailureKind = failure_kind(code)
        self.path: Path | None = None
        """The file that was loaded or executed, if the caller knows it."""
        reason = f": {message}" if message else ""
        cure = f"; {_CURES[code]}" if code in _CURES else ""
        super().__init__(f"{function}: {code_name(code)}, {self.kind.value}{reason}{cure}")


class ReturnCodeChecker:
    """Checks the results of functions of one `acl` module. Thread-safe."""

    def __init__(self, recent_message: Callable[[], str | None]) -> None:
        """Initialize with acl.get_recent_err_msg: the calling thread's last message, or None."""
        self._recent_message = recent_message

    def status(self, function: str, code: int, *accepted: int) -> int:
        """Return the code if it is SUCCESS or accepted. Raises DriverFault otherwise."""
        if code != SUCCESS and code not in accepted:
            raise DriverFault(function, code, self._message())
        return code

    def value(self, function: str, result: tuple[Value, int], *accepted: int) -> Value:
        """Return the value of `(value, code)`; raises like `status`."""
        value, code = result
        self.status(function, code, *accepted)
        return value

    def handle(self, function: str, handle: int) -> int:
        """Return a handle from a function without return code; 0 is a failure."""
        return self._without_code(function, handle, _NO_HANDLE)

    def getter(self, function: str, value: Value) -> Value:
        """Return the result of a getter without return code; 0 and "" are failures."""
        return self._without_code(function, value, _NO_ANSWER)

    def _without_code(self, function: str, value: Value, code: int) -> Value:
        if not value:
            raise DriverFault(function, code, self._message())
        return value

    def _message(self) -> str:
        """Return the library's message about the failure; "" if it has none."""
        # Reading the message clears it, so a later failure does not get an old message.
        return " ".join((self._recent_message() or "").split())


GEAR_INPUT: Final = "ascend_mbatch_shape_data"
"""The last input of a model with gears: ACL_DYNAMIC_TENSOR_NAME."""
AIPP_INPUT: Final = "ascend_dynamic_aipp_data"
"""The input for the parameters of dynamic AIPP: ACL_DYNAMIC_AIPP_NAME."""

ACL_DTYPES: Final[Mapping[int, DType]] = {
    0: DType.FP32,
    1: DType.FP16,
    2: DType.INT8,
    3: DType.INT32,
    4: DType.UINT8,
    6: DType.INT16,
    7: DType.UINT16,
    8: DType.UINT32,
    9: DType.INT64,
    10: DType.UINT64,
    11: DType.FP64,
    12: DType.BOOL,
    27: DType.BF16,
}
"""The types that Triton has, by value of aclDataType."""

PLAIN_FORMATS: Final = (-1, 0, 1, 2, 27, 30, 35, 47)
"""Values of aclFormat whose elements are stored in C order.

Undefined, NCHW, NHWC, ND, NDHWC, NCDHW, NC and NCL.
"""

_COMPILED: Final = re.compile(r"[^:]+:\d+:(.+)")
"""The name of an output in a compiled file: node, port and original name."""


@dataclass(frozen=True, slots=True)
class ModelTensor:
    """An input or output, as the driver describes it."""

    name: str
    dtype: int
    """A value of aclDataType."""
    format: int
    """A value of aclFormat."""
    dims: tuple[int, ...]
    """A size of an input that differs between gears is -1. Outputs have the largest gear's dims."""
    nbytes: int
    """Required buffer size at the largest gear; may be larger than the elements."""


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """A model's tensors and the gears it was compiled for, in the file's order."""

    inputs: tuple[ModelTensor, ...]
    """The inputs. If the model has gears, the last one is the gear input."""
    outputs: tuple[ModelTensor, ...]
    batches: tuple[int, ...] = ()
    """Gears of `--dynamic_batch_size`."""
    images: tuple[tuple[int, int], ...] = ()
    """Gears of `--dynamic_image_size`: height, width."""
    dims: tuple[tuple[int, ...], ...] = ()
    """Gears of `--dynamic_dims`: the concatenated dims of the data inputs, in the order in which
    ATC's --input_shape names them."""

    @property
    def data_inputs(self) -> tuple[ModelTensor, ...]:
        """The inputs that a caller provides."""
        return tuple(tensor for tensor in self.inputs if tensor.name != GEAR_INPUT)

    @property
    def output_names(self) -> list[str]:
        """The outputs' names in the ONNX graph; compilers change them to node:port:name."""
        names = [tensor.name for tensor in self.outputs]
        # This form is not documented. Names are not shortened if they would not be unique.
        own = [found[1] if (found := _COMPILED.fullmatch(name)) else name for name in names]
        return own if len({*own}) == len(own) else names

    @property
    def family(self) -> str | None:
        """The type of the gears: "batch", "image" or "dims"; None for a model of one shape."""
        if self.batches:
            return "batch"
        if self.images:
            return "image"
        return "dims" if self.dims else None

    def shapes(self, order: Sequence[int]) -> dict[tuple[int, ...], tuple[tuple[int, ...], ...]]:
        """Map the setting of each gear to the dims of the data inputs.

        The entries are sorted by the number of elements. A model without gears has one entry with
        the setting ().

        Args:
            order: Indexes of the data inputs in the order in which a gear of dims lists them; an
                input that is not listed has one shape.
        """
        inputs = self.data_inputs
        found: dict[tuple[int, ...], list[tuple[int, ...]]]
        if self.batches:
            found = {(rows,): [_filled(t.dims, [rows]) for t in inputs] for rows in self.batches}
        elif self.images:
            found = {size: [_filled(t.dims, size) for t in inputs] for size in self.images}
        elif self.dims:
            found = {dims: _cut(dims, inputs, order) for dims in self.dims}
        else:
            found = {(): [t.dims for t in inputs]}
        # The driver reports gears in the order in which they were compiled.
        ordered = sorted(found.items(), key=lambda item: (sum(map(math.prod, item[1])), item[0]))
        return {gear: tuple(dims) for gear, dims in ordered}


def _filled(dims: tuple[int, ...], sizes: Sequence[int]) -> tuple[int, ...]:
    """Replace each -1 by the next size; height comes before width in all formats."""
    rest = iter(sizes)
    return tuple(next(rest) if dim == -1 else dim for dim in dims)


def _cut(
    dims: tuple[int, ...], inputs: Sequence[ModelTensor], order: Sequence[int]
) -> list[tuple[int, ...]]:
    """Split the dims of inputs, concatenated in the order `order`, into the dims of each input."""
    cut, start = [tensor.dims for tensor in inputs], 0
    for index in order:
        end = start + len(cut[index])
        cut[index] = dims[start:end]
        start = end
    return cut
