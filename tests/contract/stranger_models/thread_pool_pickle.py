"""Objects of the model's classes, pickled and unpickled by the threads of an executor."""

import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import triton_python_backend_utils as pb_utils


@dataclass
class Entry:
    name: str


class TritonPythonModel:
    def initialize(self, args):
        self.executor = ThreadPoolExecutor(max_workers=2)

    def execute(self, requests):
        wire = self.executor.submit(pickle.dumps, Entry("a")).result()
        entry = self.executor.submit(pickle.loads, wire).result()
        text = np.array([f"{entry} {type(entry) is Entry}"], dtype=object)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", text)]) for _ in requests]

    def finalize(self):
        self.executor.shutdown()
