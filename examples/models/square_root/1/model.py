"""Compute a square root step by step: a model that reschedules its requests."""

from __future__ import annotations  # Triton adds the classes of pb_utils after the import

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """One instance; each execution does one step for every request."""

    def initialize(self, args: dict[str, str]) -> None:
        """Start without requests in progress."""
        self._reached: dict[int | str, tuple[float, int]] = {}

    def execute(
        self, requests: list[pb_utils.InferenceRequest]
    ) -> list[pb_utils.InferenceResponse | None]:
        """Answer finished requests; return None for the other requests, which are rescheduled."""
        return [self._step(request) for request in requests]

    def _step(self, request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse | None:
        """Do one step of Newton's method, which approaches the root from above."""
        sequence = request.correlation_id()
        (tensor,) = request.inputs()
        x = tensor.as_numpy().item()
        if not x > 0:
            text = f"found X = {x}, expected X > 0"
            error = pb_utils.TritonError(text, pb_utils.TritonError.INVALID_ARG)
            return pb_utils.InferenceResponse(error=error)
        if request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START:
            self._reached[sequence] = max(x, 1.0), 0
        root, steps = self._reached.pop(sequence)
        lower = (root + x / root) / 2
        if lower < root:
            self._reached[sequence] = lower, steps + 1
            request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            return None
        return pb_utils.InferenceResponse(
            [
                pb_utils.Tensor("ROOT", np.array([[root]], np.float32)),
                pb_utils.Tensor("STEPS", np.array([[steps]], np.int32)),
            ]
        )
