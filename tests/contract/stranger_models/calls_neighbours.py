"""Calls to two other models at once, from `async def execute`."""

import asyncio

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    async def execute(self, requests):
        row = pb_utils.Tensor("X", np.array([3], np.float32))
        answers = await asyncio.gather(
            *(
                pb_utils.InferenceRequest(
                    model_name=name, inputs=[row], requested_output_names=["TEXT"]
                ).async_exec()
                for name in ("lazy_import", "worker_thread")
            )
        )
        told = [
            pb_utils.get_output_tensor_by_name(answer, "TEXT").as_numpy()[0].decode()
            for answer in answers
        ]
        text = np.array([str(told)], dtype=object)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", text)]) for _ in requests]
