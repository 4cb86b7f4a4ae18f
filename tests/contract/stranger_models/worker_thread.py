"""A thread of the model's own that takes its work from a queue."""

import queue
import threading
from concurrent.futures import Future

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.work = queue.Queue()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        for row, future in iter(self.work.get, None):
            future.set_result(row * 2)

    def execute(self, requests):
        responses = []
        for request in requests:
            future = Future()
            self.work.put((pb_utils.get_input_tensor_by_name(request, "X").as_numpy(), future))
            text = np.array([str(future.result().tolist())], dtype=object)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", text)]))
        return responses

    def finalize(self):
        self.work.put(None)
        self.thread.join()
