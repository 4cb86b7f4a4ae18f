"""Return codes and enumerations, named as in CANN's headers; `Refused` returns a code."""

from __future__ import annotations

from enum import IntEnum, IntFlag
from typing import Final

ACL_SUCCESS: Final = 0


class Code(IntEnum):
    """CANN's return codes, without their prefix ACL_ERROR_."""

    INVALID_PARAM = 100000
    UNINITIALIZE = 100001
    REPEAT_INITIALIZE = 100002
    INVALID_FILE = 100003
    WRITE_FILE = 100004
    INVALID_FILE_SIZE = 100005
    PARSE_FILE = 100006
    INVALID_DUMP_CONFIG = 100009
    INVALID_PROFILING_CONFIG = 100010
    INVALID_MODEL_ID = 100011
    DESERIALIZE_MODEL = 100012
    PARSE_MODEL = 100013
    READ_MODEL_FAILURE = 100014
    MODEL_SIZE_INVALID = 100015
    MODEL_INPUT_NOT_MATCH = 100017
    MODEL_OUTPUT_NOT_MATCH = 100018
    MODEL_NOT_DYNAMIC = 100019
    OP_NOT_FOUND = 100024
    UNSUPPORTED_DATA_TYPE = 100026
    FORMAT_NOT_MATCH = 100027
    REPEAT_FINALIZE = 100037
    COMPILING_STUB_MODE = 100039
    PROF_ALREADY_RUN = 100042
    PROF_NOT_RUN = 100043
    DUMP_ALREADY_RUN = 100044
    DUMP_NOT_RUN = 100045

    RT_PARAM_INVALID = 107000
    RT_INVALID_DEVICEID = 107001
    RT_CONTEXT_NULL = 107002
    RT_STREAM_CONTEXT = 107003
    RT_MODEL_CONTEXT = 107004
    RT_STREAM_MODEL = 107005
    RT_EVENT_TIMESTAMP_INVALID = 107006
    RT_ADDR_UNALIGNED = 107008
    RT_STREAM_SUBSCRIBE = 107011
    RT_THREAD_SUBSCRIBE = 107012
    RT_STREAM_NO_CB_REG = 107015
    RT_INVALID_MEMORY_TYPE = 107016
    RT_INVALID_HANDLE = 107017
    RT_INVALID_MALLOC_TYPE = 107018
    RT_WAIT_TIMEOUT = 107019
    RT_TASK_TIMEOUT = 107020
    RT_DEVICE_TASK_ABORT = 107022
    RT_STREAM_ABORT = 107023
    RT_MODEL_RUNNING = 107037

    GE_PARAM_INVALID = 145000
    GE_EXEC_NOT_INIT = 145001
    GE_EXEC_MODEL_PATH_INVALID = 145002
    GE_EXEC_MODEL_ID_INVALID = 145003
    GE_EXEC_MODEL_DATA_SIZE_INVALID = 145006
    GE_EXEC_MODEL_ADDR_INVALID = 145007
    GE_EXEC_LOAD_MODEL_REPEATED = 145009
    GE_DYNAMIC_INPUT_ADDR_INVALID = 145011
    GE_DYNAMIC_INPUT_LENGTH_INVALID = 145012
    GE_DYNAMIC_BATCH_SIZE_INVALID = 145013
    GE_AIPP_NOT_EXIST = 145015
    GE_FORMAT_INVALID = 145020
    GE_SHAPE_INVALID = 145021
    GE_DATATYPE_INVALID = 145022

    INVALID_OPP_PATH = 148049
    OP_UNSUPPORTED_DYNAMIC = 148050
    INVALID_BUNDLE_MODEL_ID = 148053

    BAD_ALLOC = 200000
    API_NOT_SUPPORT = 200001
    INVALID_DEVICE = 200002
    MEMORY_ADDRESS_UNALIGNED = 200003
    RESOURCE_NOT_MATCH = 200004
    INVALID_RESOURCE_HANDLE = 200005
    FEATURE_UNSUPPORTED = 200006

    RT_FEATURE_NOT_SUPPORT = 207000
    RT_MEMORY_ALLOCATION = 207001
    RT_MEMORY_FREE = 207002
    RT_AICORE_OVER_FLOW = 207003
    RT_NO_DEVICE = 207004
    RT_RESOURCE_ALLOC_FAIL = 207005
    RT_NO_PERMISSION = 207006
    RT_NO_EVENT_RESOURCE = 207007
    RT_NO_STREAM_RESOURCE = 207008
    RT_NO_NOTIFY_RESOURCE = 207009
    RT_NO_MODEL_RESOURCE = 207010
    RT_NO_CDQ_RESOURCE = 207011
    RT_OVER_LIMIT = 207012
    RT_QUEUE_EMPTY = 207013
    RT_QUEUE_FULL = 207014
    RT_REPEATED_INIT = 207015
    RT_AIVEC_OVER_FLOW = 207016
    RT_OVER_FLOW = 207017
    RT_DEVICE_OOM = 207018
    RT_TIMEOUT = 207020

    GE_MEMORY_ALLOCATION = 245000
    GE_MEMORY_OPERATE_FAILED = 245001
    GE_DEVICE_MEMORY_OPERATE_FAILED = 245002

    STORAGE_OVER_LIMIT = 300000
    GE_DATA_NOT_ALIGNED = 345104

    INTERNAL_ERROR = 500000
    FAILURE = 500001
    GE_FAILURE = 500002
    RT_FAILURE = 500003
    DRV_FAILURE = 500004
    PROFILING_FAILURE = 500005

    RT_INTERNAL_ERROR = 507000
    RT_STREAM_TASK_FULL = 507002
    RT_STREAM_NOT_COMPLETE = 507004
    RT_EVENT_NOT_COMPLETE = 507006
    RT_CONTEXT_RELEASE_ERROR = 507007
    RT_SOC_VERSION = 507008
    RT_LOST_HEARTBEAT = 507010
    RT_MODEL_EXECUTE = 507011
    RT_REPORT_TIMEOUT = 507012
    RT_AICORE_TIMEOUT = 507014
    RT_AICORE_EXCEPTION = 507015
    RT_AICPU_TIMEOUT = 507017
    RT_AICPU_EXCEPTION = 507018
    RT_DEV_SETUP_ERROR = 507033
    RT_STREAM_SYNC_TIMEOUT = 507046
    RT_EVENT_SYNC_TIMEOUT = 507047
    RT_DEVICE_MEM_ERROR = 507053
    RT_HBM_MULTI_BIT_ECC_ERROR = 507054
    RT_SUSPECT_DEVICE_MEM_ERROR = 507055
    RT_LINK_ERROR = 507056
    RT_SUSPECT_REMOTE_ERROR = 507057
    RT_DRV_INTERNAL_ERROR = 507899
    RT_AICPU_INTERNAL_ERROR = 507900
    RT_SOCKET_CLOSE = 507901
    HOST_MEMORY_ALREADY_REGISTERED = 507910
    HOST_MEMORY_NOT_REGISTERED = 507911

    GE_INTERNAL_ERROR = 545000
    GE_LOAD_MODEL = 545001
    GE_EXEC_LOAD_MODEL_PARTITION_FAILED = 545002
    GE_EXEC_LOAD_WEIGHT_PARTITION_FAILED = 545003
    GE_EXEC_LOAD_TASK_PARTITION_FAILED = 545004
    GE_EXEC_LOAD_KERNEL_PARTITION_FAILED = 545005
    GE_UNLOAD_MODEL = 545009
    GE_EXECUTE_TIMEOUT = 545601


class Refused(Exception):
    """Makes a call of `acl` return `code`, and acl.get_recent_err_msg() return `text`."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(code, text)
        self.code = int(code)
        self.text = text

    def __str__(self) -> str:
        return f"{self.code}: {self.text}"


class OperatorTimeout(Refused):
    """Ends a task whose operator exceeds its time limit. The simulator does not wait this long."""

    def __init__(self, limit_s: float) -> None:
        super().__init__(Code.RT_AICORE_TIMEOUT, f"an operator ran for more than {limit_s:g} s")
        self.limit_s = limit_s


class MallocPolicy(IntEnum):
    """aclrtMemMallocPolicy, without the two bits of MemType."""

    ACL_MEM_MALLOC_HUGE_FIRST = 0
    ACL_MEM_MALLOC_HUGE_ONLY = 1
    ACL_MEM_MALLOC_NORMAL_ONLY = 2
    ACL_MEM_MALLOC_HUGE_FIRST_P2P = 3
    ACL_MEM_MALLOC_HUGE_ONLY_P2P = 4
    ACL_MEM_MALLOC_NORMAL_ONLY_P2P = 5
    ACL_MEM_MALLOC_HUGE1G_ONLY = 6
    ACL_MEM_MALLOC_HUGE1G_ONLY_P2P = 7


class MemType(IntFlag):
    """Bits that may be combined with a malloc policy."""

    ACL_MEM_TYPE_LOW_BAND_WIDTH = 0x0100
    ACL_MEM_TYPE_HIGH_BAND_WIDTH = 0x1000


class DeviceStatus(IntEnum):
    """aclrtDeviceStatus."""

    ACL_RT_DEVICE_STATUS_NORMAL = 0
    ACL_RT_DEVICE_STATUS_ABNORMAL = 1


class MemAttr(IntEnum):
    """aclrtMemAttr: the memory that acl.rt.get_mem_info reports."""

    ACL_DDR_MEM = 0
    ACL_HBM_MEM = 1
    ACL_DDR_MEM_HUGE = 2
    ACL_DDR_MEM_NORMAL = 3
    ACL_HBM_MEM_HUGE = 4
    ACL_HBM_MEM_NORMAL = 5
    ACL_DDR_MEM_P2P_HUGE = 6
    ACL_DDR_MEM_P2P_NORMAL = 7
    ACL_HBM_MEM_P2P_HUGE = 8
    ACL_HBM_MEM_P2P_NORMAL = 9
    ACL_HBM_MEM_HUGE1G = 10
    ACL_HBM_MEM_P2P_HUGE1G = 11


class HostRegister(IntFlag):
    """Flags of acl.rt.host_register_v2."""

    ACL_HOST_REG_MAPPED = 0x2
    ACL_HOST_REG_PINNED = 0x10000000


class MemcpyKind(IntEnum):
    """aclrtMemcpyKind."""

    ACL_MEMCPY_HOST_TO_HOST = 0
    ACL_MEMCPY_HOST_TO_DEVICE = 1
    ACL_MEMCPY_DEVICE_TO_HOST = 2
    ACL_MEMCPY_DEVICE_TO_DEVICE = 3
    ACL_MEMCPY_DEFAULT = 4
    ACL_MEMCPY_HOST_TO_BUF_TO_DEVICE = 5
    ACL_MEMCPY_INNER_DEVICE_TO_DEVICE = 6
    ACL_MEMCPY_INTER_DEVICE_TO_DEVICE = 7


class RunMode(IntEnum):
    """aclrtRunMode."""

    ACL_DEVICE = 0
    ACL_HOST = 1


class StreamFlag(IntFlag):
    """Flags of acl.rt.create_stream_with_config."""

    ACL_STREAM_FAST_LAUNCH = 0x1
    ACL_STREAM_FAST_SYNC = 0x2
    ACL_STREAM_PERSISTENT = 0x4


class FailureMode(IntEnum):
    """aclrtStreamFailureMode: how a failed task affects later tasks."""

    ACL_CONTINUE_ON_FAILURE = 0
    ACL_STOP_ON_FAILURE = 1


class EventFlag(IntFlag):
    """Flags of acl.rt.create_event_with_flag."""

    ACL_EVENT_SYNC = 0x1
    ACL_EVENT_CAPTURE_STREAM_PROGRESS = 0x2
    ACL_EVENT_TIME_LINE = 0x8
    ACL_EVENT_DEVICE_USE_ONLY = 0x10
    ACL_EVENT_EXTERNAL = 0x20
    ACL_EVENT_IPC = 0x40


class EventStatus(IntEnum):
    """The result of the deprecated acl.rt.query_event."""

    ACL_EVENT_STATUS_COMPLETE = 0
    ACL_EVENT_STATUS_NOT_READY = 1


class EventRecordedStatus(IntEnum):
    """The result of acl.rt.query_event_status, with the opposite meaning of EventStatus."""

    ACL_EVENT_RECORDED_STATUS_NOT_READY = 0
    ACL_EVENT_RECORDED_STATUS_COMPLETE = 1


class DataType(IntEnum):
    """aclDataType."""

    ACL_DT_UNDEFINED = -1
    ACL_FLOAT = 0
    ACL_FLOAT16 = 1
    ACL_INT8 = 2
    ACL_INT32 = 3
    ACL_UINT8 = 4
    ACL_INT16 = 6
    ACL_UINT16 = 7
    ACL_UINT32 = 8
    ACL_INT64 = 9
    ACL_UINT64 = 10
    ACL_DOUBLE = 11
    ACL_BOOL = 12
    ACL_STRING = 13
    ACL_COMPLEX64 = 16
    ACL_COMPLEX128 = 17
    ACL_BF16 = 27
    ACL_INT4 = 29
    ACL_UINT1 = 30
    ACL_COMPLEX32 = 33
    ACL_HIFLOAT8 = 34
    ACL_FLOAT8_E5M2 = 35
    ACL_FLOAT8_E4M3FN = 36
    ACL_FLOAT8_E8M0 = 37
    ACL_FLOAT6_E3M2 = 38
    ACL_FLOAT6_E2M3 = 39
    ACL_FLOAT4_E2M1 = 40
    ACL_FLOAT4_E1M2 = 41


DATA_TYPE_BYTES: Final[dict[int, int]] = {
    DataType.ACL_FLOAT: 4,
    DataType.ACL_FLOAT16: 2,
    DataType.ACL_INT8: 1,
    DataType.ACL_INT32: 4,
    DataType.ACL_UINT8: 1,
    DataType.ACL_INT16: 2,
    DataType.ACL_UINT16: 2,
    DataType.ACL_UINT32: 4,
    DataType.ACL_INT64: 8,
    DataType.ACL_UINT64: 8,
    DataType.ACL_DOUBLE: 8,
    DataType.ACL_BOOL: 1,
    DataType.ACL_COMPLEX64: 8,
    DataType.ACL_COMPLEX128: 16,
    DataType.ACL_BF16: 2,
    DataType.ACL_INT4: 1,  # the size that CANN reports
    DataType.ACL_UINT1: 1,  # the size that CANN reports
    DataType.ACL_COMPLEX32: 4,
    DataType.ACL_HIFLOAT8: 1,
    DataType.ACL_FLOAT8_E5M2: 1,
    DataType.ACL_FLOAT8_E4M3FN: 1,
    DataType.ACL_FLOAT8_E8M0: 1,
}
"""Bytes of one element, by type; 0 for types that are missing here."""


class Format(IntEnum):
    """aclFormat, the formats of a model's inputs and outputs."""

    ACL_FORMAT_UNDEFINED = -1
    ACL_FORMAT_NCHW = 0
    ACL_FORMAT_NHWC = 1
    ACL_FORMAT_ND = 2
    ACL_FORMAT_NC1HWC0 = 3
    ACL_FORMAT_FRACTAL_Z = 4
    ACL_FORMAT_NC1HWC0_C04 = 12
    ACL_FORMAT_HWCN = 16
    ACL_FORMAT_NDHWC = 27
    ACL_FORMAT_FRACTAL_NZ = 29
    ACL_FORMAT_NCDHW = 30
    ACL_FORMAT_NDC1HWC0 = 32
    ACL_FRACTAL_Z_3D = 33
    ACL_FORMAT_NC = 35
    ACL_FORMAT_NCL = 47
    ACL_FORMAT_FRACTAL_NZ_C0_16 = 50


NPY_DTYPES: Final[dict[int, str]] = {
    0: "?",
    1: "i1",
    2: "u1",
    3: "i2",
    4: "u2",
    5: "i4",
    6: "u4",
    7: "i8",
    8: "u8",
    11: "f4",
    12: "f8",
    23: "f2",
}
"""NumPy's dtypes, by the type number that acl.util.ptr_to_numpy accepts."""
