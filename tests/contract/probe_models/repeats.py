"""Makes of the number n the words `n n+1`."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor("told", np.array([[words(request)]], dtype=object))]
            )
            for request in requests
        ]


def words(request):
    number = pb_utils.get_input_tensor_by_name(request, "A").as_numpy().ravel()[0]
    return f"{number:g} {number + 100:g}".encode()
