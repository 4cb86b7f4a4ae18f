"""One frozen RuntimeConfig from the plain mapping of Triton's model configuration.

Nothing here opens a file or looks at the machine.
"""

from ge_runtime.config.faults import Faults
from ge_runtime.config.parameters import ENGINES
from ge_runtime.config.runtime_config import Pad, RuntimeConfig

__all__ = ["ENGINES", "Faults", "Pad", "RuntimeConfig"]
