"""Memory that is freed: weak references, gc.collect, and `__del__`."""

import gc
import weakref

import numpy as np
import triton_python_backend_utils as pb_utils

gone = []


class Buffer:
    def __init__(self):
        self.itself = self

    def __del__(self):
        gone.append("gone")


class TritonPythonModel:
    def execute(self, requests):
        reference = weakref.ref(Buffer())
        gc.collect()
        text = np.array([f"{reference()} {gone[-1]}"], dtype=object)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", text)]) for _ in requests]
