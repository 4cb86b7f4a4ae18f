"""Helpers beside the model: `import helper`, `from . import`, and a package."""

import helper
import numpy as np
import triton_python_backend_utils as pb_utils
from package.names import NAME

from . import helper as same


class TritonPythonModel:
    def execute(self, requests):
        text = np.array([f"{helper.WHO} {same.WHO} {NAME}"], dtype=object)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", text)]) for _ in requests]
