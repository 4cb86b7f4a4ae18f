"""One frozen RuntimeConfig from the plain mapping of Triton's model configuration.

Nothing here opens a file or looks at the machine.
"""

from ge_runtime.config.batch_inputs import BatchInput, BatchInputKind
from ge_runtime.config.faults import Faults
from ge_runtime.config.kept import ATC_FLAGS, GE_LEVELS, GRAPH_LEVEL, SESSION_LEVEL
from ge_runtime.config.runtime_config import RuntimeConfig
from ge_runtime.config.settings import DEVICES, ENGINES, kind_of

__all__ = [
    "ATC_FLAGS",
    "DEVICES",
    "ENGINES",
    "GE_LEVELS",
    "GRAPH_LEVEL",
    "SESSION_LEVEL",
    "BatchInput",
    "BatchInputKind",
    "Faults",
    "RuntimeConfig",
    "kind_of",
]
