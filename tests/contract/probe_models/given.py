"""Returns the inputs that it received, with their values, and some properties of the request."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([told(request)]) for request in requests]


def told(request):
    tensors = sorted(
        f"{tensor.name()}={tensor.as_numpy().ravel().tolist()}" for tensor in request.inputs()
    )
    facts = [request.request_id(), request.timeout(), request.parameters()]
    text = " ".join(
        [*tensors, *map(str, facts), str(request.correlation_id()), str(request.flags())]
    )
    return pb_utils.Tensor("told", np.array([[text.encode()]], dtype=object))
