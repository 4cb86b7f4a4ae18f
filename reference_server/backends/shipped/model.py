"""Models of the backends `onnxruntime`, `openvino` and `pytorch`: executed by ge_runtime.

Not a part of the server's package: it is loaded as any Python-based backend's model.py is, and only
when a model asks for it.
"""

from __future__ import annotations

from typing import Any

import triton_python_backend_utils as pb_utils

try:
    from ge_runtime.adapters.step_model import StepModel
except ImportError as error:
    raise ImportError(
        f"{error}: models of the backends onnxruntime, openvino, pytorch are run by ge_runtime: "
        "`pip install ge-runtime`, with [openvino] or [torch] for these two"
    ) from error


class TritonPythonModel:
    """One instance."""

    @staticmethod
    def auto_complete_config(config: Any) -> Any:  # noqa: ANN401 - pb_utils.ModelConfig
        """The configuration, completed from the file."""
        return StepModel.complete(config, pb_utils)

    def initialize(self, args: dict[str, str]) -> None:
        """Open the file of the model's version."""
        self._step = StepModel(args, pb_utils)

    def execute(self, requests: Any) -> Any:  # noqa: ANN401 - pb_utils.InferenceRequest and -Response
        """Answer all requests, in one execution where they have a batch dimension."""
        return self._step.execute(requests)

    def finalize(self) -> None:
        """Free the file."""
        self._step.close()
