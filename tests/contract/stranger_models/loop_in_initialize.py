"""asyncio.get_event_loop() in `initialize`, run in `execute`."""

import asyncio

import numpy as np
import triton_python_backend_utils as pb_utils


async def fetch(number):
    await asyncio.sleep(0)
    return number


class TritonPythonModel:
    def initialize(self, args):
        self.loop = asyncio.get_event_loop()

    def execute(self, requests):
        fetched = self.loop.run_until_complete(asyncio.gather(fetch(1), fetch(2)))
        text = np.array([str(fetched)], dtype=object)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", text)]) for _ in requests]
