"""A signal handler, installed by a library that takes the main thread for granted."""

import signal

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        signal.signal(signal.SIGALRM, lambda number, frame: None)
        text = np.array(["installed"], dtype=object)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", text)]) for _ in requests]
