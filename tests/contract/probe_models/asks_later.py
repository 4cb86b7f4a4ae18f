"""Executes the code of its request, awaits its `main` and answers with the result as text."""

import asyncio

import numpy as np
import triton_python_backend_utils as pb_utils


def echo(*values, model="echoes", **named):
    tensor = pb_utils.Tensor("IN", np.array(values, np.float32))
    return pb_utils.InferenceRequest(
        model_name=model, inputs=[tensor], requested_output_names=["OUT"], **named
    )


def show(response):
    if response.has_error():
        return f"{response.error().code()}: {response.error().message()}"
    return str([(t.name(), t.as_numpy().tolist()) for t in response.output_tensors()])


class TritonPythonModel:
    async def execute(self, requests):
        return [await self.answer(request) for request in requests]

    async def answer(self, request):
        code = pb_utils.get_input_tensor_by_name(request, "CODE").as_numpy()[0].decode()
        names = dict(globals(), asyncio=asyncio)
        exec(code, names)
        text = np.array([str(await names["main"]())], dtype=object)
        return pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", text)])
