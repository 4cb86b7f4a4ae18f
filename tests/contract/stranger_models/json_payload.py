"""JSON in a tensor of strings, and the request's own parameters."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            row = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            parameters = json.loads(request.parameters())
            body = json.dumps({"row": row.tolist(), "temperature": parameters["temperature"]})
            text = np.array([body.encode("utf-8")], dtype=np.bytes_)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", text)]))
        return responses
