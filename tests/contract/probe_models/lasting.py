"""Executes each batch for the longest time that one of its requests demands.

`X` has the milliseconds; `Y` the batch: the ids of its requests, which are digits. An instance of a
group with the name `at_N` opens N milliseconds after 1970.
"""

import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        group, _, _ = args["model_instance_name"].rpartition("_")
        if group.startswith("at_"):
            time.sleep(max(0, int(group.removeprefix("at_")) / 1000 - time.time()))

    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "X") for request in requests]
        time.sleep(float(max(tensor.as_numpy().max() for tensor in inputs)) / 1000)
        ids = np.array([[int(request.request_id()) for request in requests]], np.int32)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", ids)]) for _ in requests]
