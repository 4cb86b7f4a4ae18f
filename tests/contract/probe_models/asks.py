"""Executes the code of its request and answers with the text of the variable R.

The code sees this module's names, `request`, and the model as `self`.
"""

import asyncio
import json
import threading

import numpy as np
import triton_python_backend_utils as pb_utils

__all__ = ["asyncio", "json", "threading"]


def numbers(*values, name="IN", dtype=np.float32):
    return pb_utils.Tensor(name, np.array(values, dtype))


def to(model, *inputs, outputs=(), **named):
    """Return a request to a model."""
    return pb_utils.InferenceRequest(
        model_name=model, inputs=list(inputs), requested_output_names=list(outputs), **named
    )


def echo(*values, **named):
    """Return a request whose response has the same numbers."""
    return to("echoes", numbers(*values), outputs=["OUT"], **named)


def seen(**named):
    """Return the attributes that the called model sees."""
    text = to("echoes", numbers(1), outputs=["SEEN"], **named).exec()
    return text.output_tensors()[0].as_numpy()[0].decode() if not text.has_error() else show(text)


def show(response):
    """Return a response as text."""
    if response.has_error():
        return f"{response.error().code()}: {response.error().message()}"
    return str([(t.name(), t.as_numpy().tolist()) for t in response.output_tensors()])


def refusal(function, *arguments, **named):
    try:
        return repr(function(*arguments, **named))
    except BaseException as error:
        return f"{type(error).__name__}: {error}"


class TritonPythonModel:
    def initialize(self, args):
        self.early = refusal(echo(1).exec)

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        code = pb_utils.get_input_tensor_by_name(request, "CODE").as_numpy()[0].decode()
        names = dict(globals(), request=request, self=self, R=None)
        exec(code, names)
        text = np.array([str(names["R"])], dtype=object)
        return pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", text)])
