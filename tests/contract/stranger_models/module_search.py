"""Optional modules: a model asks which ones there are before it imports one."""

import importlib.util

import numpy as np
import triton_python_backend_utils as pb_utils

NAMES = ("helper", "no_such_module", "json")


class TritonPythonModel:
    def execute(self, requests):
        found = [name for name in NAMES if importlib.util.find_spec(name) is not None]
        import helper

        output = pb_utils.Tensor("TEXT", np.array([f"{found} {helper.WHO}"], object))
        return [pb_utils.InferenceResponse([output]) for _ in requests]
