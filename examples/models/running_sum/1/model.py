"""Add up the values of a sequence of requests: a model with state."""

from __future__ import annotations  # Triton adds the classes of pb_utils after the import

from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """One instance; it receives all requests of a sequence in order."""

    def initialize(self, args: dict[str, str]) -> None:
        """Start without sequences."""
        self._sums: dict[int | str, Any] = {}

    def execute(
        self, requests: list[pb_utils.InferenceRequest]
    ) -> list[pb_utils.InferenceResponse]:
        """Answer each request; the requests belong to different sequences."""
        return [self._add(request) for request in requests]

    def _add(self, request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse:
        sequence, flags = request.correlation_id(), request.flags()
        if flags & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START:
            self._sums[sequence] = np.float32(0)
        (x,) = request.inputs()
        self._sums[sequence] += x.as_numpy()
        total = pb_utils.Tensor("SUM", self._sums[sequence].copy())
        if flags & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END:
            del self._sums[sequence]
        return pb_utils.InferenceResponse([total])
