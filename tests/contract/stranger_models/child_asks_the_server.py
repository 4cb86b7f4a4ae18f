"""A model call from a forked child."""

import multiprocessing

import numpy as np
import triton_python_backend_utils as pb_utils

fork = multiprocessing.get_context("fork")


def call(end):
    row = pb_utils.Tensor("X", np.ones(1, np.float32))
    request = pb_utils.InferenceRequest(
        model_name="lazy_import", inputs=[row], requested_output_names=["TEXT"]
    )
    try:
        answer = request.exec()
        end.send(pb_utils.get_output_tensor_by_name(answer, "TEXT").as_numpy()[0].decode())
    except pb_utils.TritonModelException as error:
        end.send(str(error))


class TritonPythonModel:
    def execute(self, requests):
        end, childs = fork.Pipe()
        process = fork.Process(target=call, args=(childs,))
        process.start()
        text = np.array([end.recv()], dtype=object)
        process.join()
        return [pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", text)]) for _ in requests]
