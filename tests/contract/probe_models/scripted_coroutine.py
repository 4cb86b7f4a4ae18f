"""Executes the script in each request on the instance's event loop, concurrently.

The script is the body of a coroutine; all scripts share the dict `kept`.
"""

import asyncio
import textwrap

import numpy as np
import triton_python_backend_utils as pb_utils


def say(*texts):
    """Return a response with these texts."""
    array = np.array([text.encode() for text in texts], dtype=object)
    return pb_utils.InferenceResponse([pb_utils.Tensor("said", array)])


class TritonPythonModel:
    def initialize(self, args):
        self.kept = {}

    async def execute(self, requests):
        for request in requests:
            script = pb_utils.get_input_tensor_by_name(request, "script").as_numpy()[0].decode()
            names = {"asyncio": asyncio, "say": say, "FINAL": 1, "kept": self.kept}
            exec("async def body(sender):\n" + textwrap.indent(script, "  "), names)
            await names["body"](request.get_response_sender())
        return ["of no consequence"]
