"""Imports in `initialize` and `execute`, by name and by statement."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        import importlib

        self.decimal = importlib.import_module("decimal")

    def execute(self, requests):
        from fractions import Fraction

        text = np.array([f"{self.decimal.Decimal('1.50')} {Fraction(3, 6)}"], dtype=object)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", text)]) for _ in requests]
