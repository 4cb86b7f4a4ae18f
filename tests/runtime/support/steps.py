"""Configurations of steps, in Triton's JSON form, and graphs for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
from runtime.support.graphs import onnx_model

from ge_runtime.steps.step_config import StepConfig


def step_json(**fields: Any) -> dict[str, Any]:
    return {"name": "m", "max_batch_size": 0, "input": [], "output": [], "parameters": {}, **fields}


def step_config(**fields: Any) -> StepConfig:
    return StepConfig.read(step_json(**fields))


def tensor(name: str, data_type: str = "FP32", dims: Any = (2,), **fields: Any) -> dict[str, Any]:
    return {"name": name, "data_type": f"TYPE_{data_type}", "dims": list(dims), **fields}


def parameters(**values: str) -> dict[str, Any]:
    return {name: {"string_value": value} for name, value in values.items()}


def save(folder: Path, nodes: Any, inputs: Any, outputs: Any, constants: Any = None) -> Path:
    """Write model.onnx to a version's folder."""
    onnx.save(onnx_model(nodes, inputs, outputs, constants), folder / "model.onnx")
    return folder
