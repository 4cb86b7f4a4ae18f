"""The `model.py` of the backends `onnxruntime`, `openvino` and `pytorch`, run by ge_runtime.

It is not part of the server's package: it is loaded like the model.py of any Python-based backend,
and only if a model needs it.
"""

from __future__ import annotations

from typing import Any

import triton_python_backend_utils as pb_utils

try:
    from ge_runtime.adapters.step_model import StepModel
except ImportError as error:
    raise ImportError(
        f"{error}: the backends onnxruntime, openvino and pytorch need ge_runtime. "
        "Install ge-runtime, ge-runtime[openvino] or ge-runtime[torch]."
    ) from error


class TritonPythonModel:
    """One instance of the model."""

    @staticmethod
    def auto_complete_config(config: Any) -> Any:  # noqa: ANN401 - pb_utils.ModelConfig
        """Return the configuration, completed from the graph's file."""
        return StepModel.complete(config, pb_utils)

    def initialize(self, args: dict[str, str]) -> None:
        """Open the graph's file of the model's version."""
        self._step = StepModel(args, pb_utils)

    def execute(self, requests: Any) -> Any:  # noqa: ANN401 - pb_utils.InferenceRequest and -Response
        """Answer all requests, in one execution if they have a batch dimension."""
        return self._step.execute(requests)

    def finalize(self) -> None:
        """Close the graph."""
        self._step.close()
