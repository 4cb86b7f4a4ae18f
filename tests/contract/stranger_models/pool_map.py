"""A multiprocessing.Pool from `initialize` that maps a function over objects of the model."""

import multiprocessing

import numpy as np
import triton_python_backend_utils as pb_utils


class Document:
    def __init__(self, words):
        self.words = words


def count(document):
    return Document(len(document.words))


class TritonPythonModel:
    def initialize(self, args):
        self.pool = multiprocessing.get_context("fork").Pool(1)

    def execute(self, requests):
        documents = [Document(["a", "b"]), Document(["c"])]
        counted = [document.words for document in self.pool.map(count, documents)]
        text = np.array([str(counted)], dtype=object)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", text)]) for _ in requests]

    def finalize(self):
        self.pool.close()
        self.pool.join()
