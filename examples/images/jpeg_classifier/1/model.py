"""The classifier of model_repository/ge_classifier for JPEG files, configured in config.pbtxt."""

from __future__ import annotations  # Triton adds the classes of pb_utils after the import

import triton_python_backend_utils as pb_utils

from ge_runtime.adapters.triton import GraphModel


class TritonPythonModel:
    """One instance of the model."""

    def initialize(self, args: dict[str, str]) -> None:
        self._graph = GraphModel(args, pb_utils)

    def execute(self, requests: list[pb_utils.InferenceRequest]) -> list[object] | None:
        return self._graph.execute(requests)

    def is_ready(self) -> bool:
        return self._graph.is_ready()

    def finalize(self) -> None:
        self._graph.close()
