"""Square each value of X."""

from __future__ import annotations  # Triton adds the classes of pb_utils after the import

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """One instance of the model."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load weights here: called once for each instance.

        `args` has the model's folder `model_repository`, `model_version`, and `model_config` as
        JSON.
        """

    def execute(
        self, requests: list[pb_utils.InferenceRequest]
    ) -> list[pb_utils.InferenceResponse]:
        """Return one response for each request, in the order of the requests."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse:
        tensor = pb_utils.get_input_tensor_by_name(request, "X")
        assert tensor is not None  # the server has checked that each input is present
        values = tensor.as_numpy()  # shape [rows, values]
        if not values.size:
            error = pb_utils.TritonError("X is empty", pb_utils.TritonError.INVALID_ARG)
            return pb_utils.InferenceResponse(error=error)
        return pb_utils.InferenceResponse([pb_utils.Tensor("Y", values * values)])

    def finalize(self) -> None:
        """Release what `initialize` has opened: called once before the instance ends."""
