"""Counters of the model's own, with labels."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.family = pb_utils.MetricFamily(
            name="strangers_tokens",
            description="Tokens by kind",
            kind=pb_utils.MetricFamily.COUNTER,
        )
        self.tokens = self.family.Metric(labels={"kind": "prompt"})

    def execute(self, requests):
        self.tokens.increment(len(requests))
        text = np.array([str(self.tokens.value())], dtype=object)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", text)]) for _ in requests]
