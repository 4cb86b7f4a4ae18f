"""A model that inherits most of itself, with an abstract base class and a property."""

import abc

import numpy as np
import triton_python_backend_utils as pb_utils


class Base(abc.ABC):
    def initialize(self, args):
        self.calls = 0

    @abc.abstractmethod
    def answer(self): ...

    def execute(self, requests):
        self.calls += 1
        text = np.array([self.answer()], dtype=object)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", text)]) for _ in requests]


class TritonPythonModel(Base):
    @property
    def name(self):
        return type(self).__mro__[1].__name__

    def answer(self):
        return f"{self.name} {super().__class__.__name__} {self.calls}"
