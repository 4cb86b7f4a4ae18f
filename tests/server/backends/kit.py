"""Small models in their own folders, and requests for them."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from server.support.requests import Answers, NullSink

from reference_server.backends.instances import InstanceSpec
from reference_server.backends.python_host.api.response import ResponseSenders
from reference_server.backends.python_host.inline import InlineInstance
from reference_server.core.errors import Code, ServerError
from reference_server.core.request import InferRequest, InferResponse
from reference_server.core.tensor import Tensor, datatype_of
from reference_server.observability.metric_registry import MetricRegistry

FAILED = "Failed to process the request(s) for model 'm_0_0', message: "

#: The rest of the text for a request that the model has dropped.
DROPPED = (
    "The model has dropped the request: found no complete response; expected a returned response "
    "or the final flag."
)

IDENTITY = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            return [
                pb_utils.InferenceResponse([
                    pb_utils.Tensor("OUT", pb_utils.get_input_tensor_by_name(r, "IN").as_numpy())
                ])
                for r in requests
            ]
"""


#: A model that answers with the result of its function `reply`.
REPLYING = """
import sys
import numpy as np
import triton_python_backend_utils as pb_utils
{}

class TritonPythonModel:
    def execute(self, requests):
        text = pb_utils.Tensor("TEXT", np.array([reply()], dtype=object))
        return [pb_utils.InferenceResponse([text]) for _ in requests]
"""

#: A model with a given `execute`.
EXECUTING = """
import triton_python_backend_utils as pb_utils
import numpy as np

class TritonPythonModel:
    def execute(self, requests):
        {}
"""


class Ticks:
    """A clock that advances by one nanosecond at each reading."""

    def __init__(self) -> None:
        self._now = 0

    def monotonic_ns(self) -> int:
        self._now += 1
        return self._now

    def wall_ns(self) -> int:
        return 0


def write(path: Path, source: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(source), encoding="utf-8")
    return path


def replying(*lines: str) -> str:
    """Return a model that answers with the result of `reply`, which `lines` define."""
    return REPLYING.format("\n".join(lines))


def executing(*lines: str) -> str:
    """Return a model whose `execute` consists of `lines`."""
    return EXECUTING.format("\n        ".join(lines))


#: A model that counts its calls in one of its globals and in a global of its helper.
COUNTING = replying(
    "import helper",
    "count = 0",
    "def reply():",
    "    global count",
    "    count += 1",
    "    helper.count += 10",
    "    return f'{count} {helper.count} {helper.name}'",
)


def model_file(
    root: Path,
    source: str,
    files: Mapping[str, str] = {},
    *,
    name: str = "m",
    version: int = 1,
    filename: str = "model.py",
) -> Path:
    """Write a model's folder; the keys of `files` are paths in it."""
    for path, text in files.items():
        write(root / name / path, text)
    return write(root / name / str(version) / filename, source)


def spec(file: Path, *, name: str = "m_0_0", **changes: object) -> InstanceSpec:
    """Return the specification of an instance of the model in `file`."""
    settings: dict[str, object] = {
        "name": name,
        "model_name": file.parents[1].name,
        "model_version": int(file.parent.name),
        "model_directory": file.parents[1],
        "version_directory": file.parent,
        "model_filename": file.name,
        "config_json": "{}",
        "output_names": frozenset({"OUT", "TEXT"}),
    }
    return InstanceSpec(**(settings | changes))


def instance(
    file: Path, *, metrics: MetricRegistry | None = None, **changes: object
) -> InlineInstance:
    """Return an instance of the model in `file`, not open yet."""
    return InlineInstance(spec(file, **changes), Ticks(), metrics or MetricRegistry())


def request(*outputs: str, id: str = "", **arrays: object) -> InferRequest:
    """Return a request for `outputs` (none means all) with the inputs `arrays`."""
    inputs = {}
    for name, value in arrays.items():
        array = np.asarray(value)
        inputs[name] = Tensor(name, datatype_of(array), array.shape, array=array)
    return InferRequest("m", inputs, NullSink(), id=id, requested_outputs=outputs)


def answer(opened: InlineInstance, asked: InferRequest) -> InferResponse:
    """Return the one response to one request, whether returned or sent."""
    answers = asked.sink = Answers()
    (response,) = opened.execute([asked]).responses
    return response or answers.wait()


def outputs(response: InferResponse) -> dict[str, list[object]]:
    """Return the elements of a successful response by output."""
    assert response.error is None, response.error
    return {tensor.name: tensor.array().tolist() for tensor in response.outputs}


def execution_error(opened: InlineInstance, *requests: InferRequest) -> str:
    """Return the error of a batch that fails as a whole."""
    with pytest.raises(ServerError) as caught:
        opened.execute(requests or [request()])
    assert caught.value.code is Code.INTERNAL
    return caught.value.message


def said(opened: InlineInstance, **arrays: object) -> object:
    """Return the model's text in its one-element output TEXT."""
    (text,) = outputs(answer(opened, request(**arrays)))["TEXT"]
    assert isinstance(text, bytes)
    return text.decode()


def senders(*, is_decoupled: bool = False) -> ResponseSenders:
    """Return a sender factory for requests outside of an instance."""
    names = frozenset({"OUT", "TEXT"})
    return ResponseSenders("m_0_0", "m", 1, names, is_decoupled=is_decoupled)


def failure(opened: InlineInstance, asked: InferRequest) -> str:
    """Return the error of `asked`, or of its whole batch."""
    try:
        error = answer(opened, asked).error
    except ServerError as caught:
        error = caught
    assert error is not None
    return error.message
