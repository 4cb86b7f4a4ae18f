"""contextvars and threading.local, set in `initialize` and read in `execute`."""

import contextvars
import threading

import numpy as np
import triton_python_backend_utils as pb_utils

tenant = contextvars.ContextVar("tenant", default="none")
local = threading.local()


class TritonPythonModel:
    def initialize(self, args):
        tenant.set("first")
        local.session = "second"

    def execute(self, requests):
        text = np.array([f"{tenant.get()} {local.session}"], dtype=object)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", text)]) for _ in requests]
