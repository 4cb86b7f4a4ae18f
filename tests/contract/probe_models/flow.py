"""Executes the words of its input in order; for ordinary and for decoupled models.

A word that is a number answers with it in Y and Z, `y1` and `z1` leave the other one out, `none`
leaves out both, `error` is an error. With `!` at its end the response is the last one.
"""

import json

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


def response(word):
    if word == "error":
        return pb_utils.InferenceResponse(
            error=pb_utils.TritonError("told to", pb_utils.TritonError.UNAVAILABLE)
        )
    number = word.lstrip("yz")
    names = () if word == "none" else ("YZ" if number == word else word[0].upper())
    return pb_utils.InferenceResponse(
        [pb_utils.Tensor(name, np.array([[float(number)]], np.float32)) for name in names]
    )


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.is_decoupled = config.get("model_transaction_policy", {}).get("decoupled", False)

    def execute(self, requests):
        told = [
            pb_utils.get_input_tensor_by_name(request, "what").as_numpy().ravel()[0].decode()
            for request in requests
        ]
        if not self.is_decoupled:
            return [response(words) for words in told]
        for request, words in zip(requests, told, strict=True):
            self.stream(request.get_response_sender(), words.split())
        return None

    def stream(self, sender, words):
        for word in words:
            if word.endswith("!"):
                sender.send(response(word[:-1]), flags=FINAL)
                return
            sender.send(response(word))
        sender.send(flags=FINAL)
