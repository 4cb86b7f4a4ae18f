"""`async def execute`, with its requests gathered."""

import asyncio

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    async def execute(self, requests):
        return await asyncio.gather(*(self.answer(request) for request in requests))

    async def answer(self, request):
        await asyncio.sleep(0)
        text = np.array([str(len(request.inputs()))], dtype=object)
        return pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", text)])
