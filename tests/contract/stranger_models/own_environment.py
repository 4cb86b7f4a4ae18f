"""A model with its own packages, in an archive of a Python environment beside its code."""

import os
import sys

import numpy as np
import own_package
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        folder = os.path.realpath(sys.prefix)
        is_inside = os.path.realpath(own_package.__file__).startswith(folder + os.sep)
        is_activated = os.path.realpath(os.environ["OWN_ENVIRONMENT"]) == folder
        text = f"{own_package.NAME} {is_inside} {is_activated} {os.access(folder, os.W_OK)}"
        output = pb_utils.Tensor("TEXT", np.array([text], object))
        return [pb_utils.InferenceResponse([output]) for _ in requests]
