"""DLPack without a copy, and a view that is written to."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            tensor = pb_utils.get_input_tensor_by_name(request, "X")
            row = np.from_dlpack(tensor)
            array = tensor.as_numpy()
            array += 1
            text = np.array([f"{row.dtype} {row.shape} {array.tolist()}"], dtype=object)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", text)]))
        return responses
