"""A program that is run, with what it prints."""

import subprocess
import sys

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        command = [sys.executable, "-c", "import sys; print(sys.argv[1:], sys.stdin.read())", "a"]
        ran = subprocess.run(command, input="b", capture_output=True, text=True, check=True)
        text = np.array([ran.stdout], dtype=object)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", text)]) for _ in requests]
