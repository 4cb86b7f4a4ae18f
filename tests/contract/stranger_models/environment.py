"""os.environ, set before a library reads it, and given to a program."""

import os
import subprocess
import sys

os.environ["STRANGERS_HOME"] = "/models/cache"

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        program = "import os; print(os.environ['STRANGERS_HOME'])"
        told = subprocess.check_output([sys.executable, "-c", program], text=True)
        text = np.array([told.strip()], dtype=object)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", text)]) for _ in requests]
