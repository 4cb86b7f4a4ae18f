"""asyncio.run in `execute`."""

import asyncio

import numpy as np
import triton_python_backend_utils as pb_utils


async def fetch():
    return await asyncio.to_thread(lambda: "fetched")


class TritonPythonModel:
    def execute(self, requests):
        text = np.array([asyncio.run(fetch())], dtype=object)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", text)]) for _ in requests]
