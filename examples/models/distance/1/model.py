"""Compute the distance of a point from zero; another model computes the root (BLS)."""

from __future__ import annotations  # Triton adds the classes of pb_utils after the import

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """One instance of the model."""

    def execute(
        self, requests: list[pb_utils.InferenceRequest]
    ) -> list[pb_utils.InferenceResponse]:
        """Answer each request independently."""
        return [distance(request) for request in requests]


def distance(request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse:
    """Return the root of the sum of squares, or the error of the model square_root."""
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
