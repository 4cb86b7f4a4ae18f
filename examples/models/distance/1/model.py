"""Tells how far a point is from zero, and calls another model for the root (BLS)."""

from __future__ import annotations  # Triton adds the classes of pb_utils after this file has run

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """One instance of the model."""

    def execute(
        self, requests: list[pb_utils.InferenceRequest]
    ) -> list[pb_utils.InferenceResponse]:
        """Answer each request by itself."""
        return [distance(request) for request in requests]


def distance(request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse:
    """The root of the sum of the squares, or the error of the model that takes roots."""
    (tensor,) = request.inputs()
    point = tensor.as_numpy()
    root_request = pb_utils.InferenceRequest(
        model_name="square_root",
        inputs=[pb_utils.Tensor("X", np.array([[point @ point]], np.float32))],
        requested_output_names=["ROOT"],
    )
    response = root_request.exec()
    if response.has_error():
        return pb_utils.InferenceResponse(error=response.error())
    (root,) = response.output_tensors()
    return pb_utils.InferenceResponse([pb_utils.Tensor("DISTANCE", root.as_numpy().reshape(1))])
