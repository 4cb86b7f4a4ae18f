"""Labels beyond ASCII in a file that is opened without an encoding."""

import os

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        folder = os.path.dirname(os.path.abspath(__file__))
        with open(os.path.join(folder, "labels.txt")) as file:
            text = file.read().strip()
        output = pb_utils.Tensor("TEXT", np.array([text], object))
        return [pb_utils.InferenceResponse([output]) for _ in requests]
