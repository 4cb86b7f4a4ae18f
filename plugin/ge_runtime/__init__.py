"""Serves compiled graphs: requests of any sizes share executions in planned memory.

Models in Triton use `ge_runtime.adapters.triton`; all other code starts with `Runtime.open`.
"""

from ge_runtime.config import RuntimeConfig
from ge_runtime.errors import (
    ArtifactFault,
    ConfigFault,
    EngineFault,
    EngineLost,
    PlanFault,
    RequestFault,
    RuntimeClosed,
    RuntimeFault,
    ShapeMismatch,
)
from ge_runtime.runtime import Runtime
from ge_runtime.scheduling.request_batch import Answer, Caller
from ge_runtime.specs import DType, TensorSpec

__all__ = [
    "Answer",
    "ArtifactFault",
    "Caller",
    "ConfigFault",
    "DType",
    "EngineFault",
    "EngineLost",
    "PlanFault",
    "RequestFault",
    "Runtime",
    "RuntimeClosed",
    "RuntimeConfig",
    "RuntimeFault",
    "ShapeMismatch",
    "TensorSpec",
]
