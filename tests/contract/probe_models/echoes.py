"""Returns its numbers and properties of the request; the numbers -1 to -4 cause faults."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        numbers = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
        first = numbers.ravel()[0] if numbers.size else 0
        if first == -1:
            error = pb_utils.TritonError("no such thing", pb_utils.TritonError.NOT_FOUND)
            return pb_utils.InferenceResponse(error=error)
        if first == -4:
            error = pb_utils.TritonError("given up", pb_utils.TritonError.CANCELLED)
            return pb_utils.InferenceResponse(error=error)
        if first == -2:
            raise ValueError("not that number")
        if first == -3:
            numbers += 100
        seen = [
            request.request_id(),
            request.correlation_id(),
            request.flags(),
            request.timeout(),
            request.parameters(),
            sorted(request.requested_output_names()),
            request.trace().get_context(),
        ]
        return pb_utils.InferenceResponse(
            [
                pb_utils.Tensor("OUT", numbers),
                pb_utils.Tensor("SEEN", np.array([str(seen)], dtype=object)),
            ]
        )
