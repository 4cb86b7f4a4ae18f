"""Executes a batch for the longest time that one of its requests asks for.

`X` has the milliseconds; `Y` the batch: the ids of its requests, which are digits.
"""

import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "X") for request in requests]
        time.sleep(float(max(tensor.as_numpy().max() for tensor in inputs)) / 1000)
        ids = np.array([[int(request.request_id()) for request in requests]], np.int32)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", ids)]) for _ in requests]
