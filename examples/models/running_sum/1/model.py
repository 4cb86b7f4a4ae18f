"""Adds up what a sequence of requests brings: a model that remembers."""

from __future__ import annotations  # Triton adds the classes of pb_utils after this file has run

from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """One instance; all requests of a sequence come to the same one, in their order."""

    def initialize(self, args: dict[str, str]) -> None:
        """Begin without any sequence."""
        self._sums: dict[int | str, Any] = {}

    def execute(
        self, requests: list[pb_utils.InferenceRequest]
    ) -> list[pb_utils.InferenceResponse]:
        """Answer each request; no two of them are of the same sequence."""
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
