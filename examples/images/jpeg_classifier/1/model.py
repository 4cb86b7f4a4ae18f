"""The classifier of model_repository/ge_classifier for JPEG files; config.pbtxt says it all."""

from __future__ import annotations  # Triton adds the classes of pb_utils after this file has run

import triton_python_backend_utils as pb_utils

from ge_runtime.adapters.triton import GraphModel


class TritonPythonModel:
    """Called by Triton."""

    def initialize(self, args: dict[str, str]) -> None:
        self._graph = GraphModel(args, pb_utils)

    def execute(self, requests: list[pb_utils.InferenceRequest]) -> list[object] | None:
        return self._graph.execute(requests)

    def is_ready(self) -> bool:
        return self._graph.is_ready()

    def finalize(self) -> None:
        self._graph.close()
