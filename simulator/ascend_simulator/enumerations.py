"""Enumerations and flags of the interface, named as in CANN's headers."""

from __future__ import annotations

from enum import IntEnum, IntFlag
from typing import Final


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
"""Bytes of one element; 0 for types that are missing here."""


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
"""NumPy's type number, as acl.util.ptr_to_numpy accepts it -> dtype."""
