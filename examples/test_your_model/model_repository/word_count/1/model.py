"""Count the words of texts; an empty text is an error."""

from __future__ import annotations  # Triton adds the classes of pb_utils after the import

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """One instance of the model."""

    def execute(
        self, requests: list[pb_utils.InferenceRequest]
    ) -> list[pb_utils.InferenceResponse]:
        """Answer each request independently, so that an error does not affect other requests."""
        return [answer(request) for request in requests]


def answer(request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse:
    """Return the number of words of each text, INT32 with the shape of TEXT."""
    tensor = pb_utils.get_input_tensor_by_name(request, "TEXT")
    assert tensor is not None
    texts = tensor.as_numpy()
    counts = np.array([len(text.split()) for text in texts.flat], np.int32)
    if not counts.all():
        error = pb_utils.TritonError("a text without words", pb_utils.TritonError.INVALID_ARG)
        return pb_utils.InferenceResponse(error=error)
    return pb_utils.InferenceResponse([pb_utils.Tensor("COUNT", counts.reshape(texts.shape))])
