"""The output of a library, captured with redirect_stdout."""

import contextlib
import io

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        caught = io.StringIO()
        with contextlib.redirect_stdout(caught):
            print("42 parameters")
        text = np.array([caught.getvalue()], dtype=object)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", text)]) for _ in requests]
