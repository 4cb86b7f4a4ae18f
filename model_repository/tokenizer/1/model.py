"""Convert texts to token ids with the tokenizer of the encoder's training."""

import triton_python_backend_utils as pb_utils

from ge_runtime.adapters.triton import answer_batch
from ge_runtime.steps.texts import TextStep


class TritonPythonModel:
    def initialize(self, args):
        self._step = TextStep.open(args)

    def execute(self, requests):
        return answer_batch(pb_utils, requests, self._step)
