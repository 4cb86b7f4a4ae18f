"""Parses Triton's model configuration into one frozen RuntimeConfig.

Nothing here opens a file or examines the machine.
"""

from ge_runtime.config.cards import (
    ATC_FILES,
    ATC_FLAGS,
    GE_LEVELS,
    GRAPH_LEVEL,
    METRICS,
    SESSION_LEVEL,
    Window,
    misused_flag,
)
from ge_runtime.config.execution_settings import (
    DEVICES,
    HANDLE_DIMS,
    HANDLE_DTYPE,
    MOST_ROWS,
    EnginePlace,
    Resident,
    ResidentTensor,
    TimeLimits,
    kind_of,
)
from ge_runtime.config.generated_inputs import BatchInput, BatchInputKind
from ge_runtime.config.images import Aipp, DeclaredImages, JpegPicture
from ge_runtime.config.parameters import ConfigErrors, read_number
from ge_runtime.config.runtime_config import RuntimeConfig
from ge_runtime.config.tensor_rules import BatchAxes, PaddingRule, ValueRange

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
    "TimeLimits",
    "ValueRange",
    "Window",
    "kind_of",
    "misused_flag",
    "read_number",
]
