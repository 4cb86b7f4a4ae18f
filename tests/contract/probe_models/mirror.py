"""Tells, as JSON text, all that a request says beside its tensors."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        facts = {
            "id": request.request_id(),
            "correlation": request.correlation_id(),
            "flags": request.flags(),
            "timeout": request.timeout(),
            "cancelled": request.is_cancelled(),
            "parameters": json.loads(request.parameters() or "{}"),
            "outputs": sorted(request.requested_output_names()),
            "inputs": sorted(tensor.name() for tensor in request.inputs()),
        }
        text = np.array([json.dumps(facts).encode()], dtype=object)
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor("facts", text), pb_utils.Tensor("again", text)]
        )
