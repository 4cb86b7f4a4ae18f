"""A ProcessPoolExecutor that is made in `initialize` and runs a function of the model."""

from concurrent.futures import ProcessPoolExecutor

import numpy as np
import triton_python_backend_utils as pb_utils


def normalise(row):
    return [value / 2 for value in row]


class TritonPythonModel:
    def initialize(self, args):
        self.executor = ProcessPoolExecutor(max_workers=1)

    def execute(self, requests):
        responses = []
        for request in requests:
            row = pb_utils.get_input_tensor_by_name(request, "X").as_numpy().tolist()
            text = str(self.executor.submit(normalise, row).result())
            tensor = pb_utils.Tensor("TEXT", np.array([text], dtype=object))
            responses.append(pb_utils.InferenceResponse(output_tensors=[tensor]))
        return responses

    def finalize(self):
        self.executor.shutdown()
