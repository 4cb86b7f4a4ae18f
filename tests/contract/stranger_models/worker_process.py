"""A worker process with a queue each way, ended by a sentinel in `finalize`."""

import multiprocessing

import numpy as np
import triton_python_backend_utils as pb_utils

fork = multiprocessing.get_context("fork")


def work(tasks, results):
    for row in iter(tasks.get, None):
        results.put(sum(row))


class TritonPythonModel:
    def initialize(self, args):
        self.tasks, self.results = fork.Queue(), fork.Queue()
        self.worker = fork.Process(target=work, args=(self.tasks, self.results))
        self.worker.start()

    def execute(self, requests):
        responses = []
        for request in requests:
            self.tasks.put(pb_utils.get_input_tensor_by_name(request, "X").as_numpy().tolist())
            text = np.array([str(self.results.get(timeout=20))], dtype=object)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", text)]))
        return responses

    def finalize(self):
        self.tasks.put(None)
        self.worker.join()
