"""Parses Triton's model configuration into one frozen RuntimeConfig.

Nothing here opens a file or examines the machine.
"""

from ge_runtime.config.aipp import Aipp, DeclaredImages
from ge_runtime.config.captures import METRICS, Window
from ge_runtime.config.execution_settings import DEVICES, EnginePlace, kind_of
from ge_runtime.config.generated_inputs import BatchInput, BatchInputKind
from ge_runtime.config.jpeg import JpegPicture
from ge_runtime.config.npu_ge import (
    ATC_FILES,
    ATC_FLAGS,
    GE_LEVELS,
    GRAPH_LEVEL,
    SESSION_LEVEL,
    misused_flag,
)
from ge_runtime.config.padding import PaddingRule
from ge_runtime.config.resident import (
    HANDLE_DIMS,
    HANDLE_DTYPE,
    MOST_ROWS,
    Resident,
    ResidentTensor,
)
from ge_runtime.config.runtime_config import RuntimeConfig
from ge_runtime.config.tensor_rules import BatchAxes, ValueRange
from ge_runtime.config.values import ConfigErrors, read_number

__all__ = [
    "ATC_FILES",
    "ATC_FLAGS",
    "DEVICES",
    "GE_LEVELS",
    "GRAPH_LEVEL",
    "HANDLE_DIMS",
    "HANDLE_DTYPE",
    "METRICS",
    "MOST_ROWS",
    "SESSION_LEVEL",
    "Aipp",
    "BatchAxes",
    "BatchInput",
    "BatchInputKind",
    "ConfigErrors",
    "DeclaredImages",
    "EnginePlace",
    "JpegPicture",
    "PaddingRule",
    "Resident",
    "ResidentTensor",
    "RuntimeConfig",
    "ValueRange",
    "Window",
    "kind_of",
    "misused_flag",
    "read_number",
]
