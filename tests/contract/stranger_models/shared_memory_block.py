"""multiprocessing.shared_memory, filled by a child."""

import multiprocessing
from multiprocessing import shared_memory

import numpy as np
import triton_python_backend_utils as pb_utils

fork = multiprocessing.get_context("fork")


def fill(name):
    block = shared_memory.SharedMemory(name)
    np.ndarray(4, np.uint8, block.buf)[:] = 5
    block.close()


class TritonPythonModel:
    def initialize(self, args):
        self.block = shared_memory.SharedMemory(create=True, size=4)

    def execute(self, requests):
        process = fork.Process(target=fill, args=(self.block.name,))
        process.start()
        process.join()
        text = np.array([str(bytes(self.block.buf[:4]))], dtype=object)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", text)]) for _ in requests]

    def finalize(self):
        self.block.close()
        self.block.unlink()
