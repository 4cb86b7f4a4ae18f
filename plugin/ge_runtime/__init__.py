"""Executes compiled graphs: requests of any sizes in, a few planned executions, answers out.

Models in Triton use `ge_runtime.adapters.triton`; everything else starts at `Runtime.open`.
"""

from ge_runtime.config import RuntimeConfig
from ge_runtime.errors import (
    ArtifactFault,
    ConfigFault,
    EngineFault,
    PlanFault,
    RequestFault,
    RuntimeClosed,
    RuntimeFault,
    ShapeMismatch,
)
from ge_runtime.runtime import Answer, Runtime
from ge_runtime.specs import DType, TensorSpec

__all__ = [
    "Answer",
    "ArtifactFault",
    "ConfigFault",
    "DType",
    "EngineFault",
    "PlanFault",
    "RequestFault",
    "Runtime",
    "RuntimeClosed",
    "RuntimeConfig",
    "RuntimeFault",
    "ShapeMismatch",
    "TensorSpec",
]
