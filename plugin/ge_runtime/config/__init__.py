"""One frozen RuntimeConfig from the plain mapping of Triton's model configuration.

Nothing here opens a file or looks at the machine.
"""

from ge_runtime.config.batch_inputs import BatchInput, BatchInputKind
from ge_runtime.config.faults import Faults
from ge_runtime.config.runtime_config import RuntimeConfig
from ge_runtime.config.settings import DEVICES, ENGINES

__all__ = [
    "DEVICES",
    "ENGINES",
    "BatchInput",
    "BatchInputKind",
    "Faults",
    "RuntimeConfig",
]
