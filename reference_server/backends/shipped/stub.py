"""The `model.py` of stub models, by `--stub-model=NAME=MODULE:FUNCTION`.

The function is called once per request, like the stubs of the test kit. It receives the inputs by
name and returns the outputs by name; its exception becomes the client's error. The function of a
decoupled model returns any number of such answers.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

PARAMETER = "STUB_MODEL"
"""The parameter in the model's configuration: MODULE:FUNCTION."""


class TritonPythonModel:
    """One instance of the model."""

    def initialize(self, args: dict[str, str]) -> None:
        """Import the function."""
        config = json.loads(args["model_config"])
        self._stub = _import_function(config["parameters"][PARAMETER]["string_value"])
        policy = config.get("model_transaction_policy") or {}
        self._decoupled = bool(policy.get("decoupled"))
        self._types = {own["name"]: _numpy_type(own["data_type"]) for own in config["output"]}
        pb_utils.Logger.log_warn(f"{args['model_instance_name']}: a stub answers for this model")

    def execute(self, requests: Any) -> Any:  # noqa: ANN401 - pb_utils.InferenceRequest and -Response
        """Call the function for each request."""
        if not self._decoupled:
            return [self._answer(request) for request in requests]
        for request in requests:
            self._send_all(request)
        return None

    def _answer(self, request: Any) -> Any:  # noqa: ANN401 - pb_utils.InferenceRequest and -Response
        try:
            return self._response(self._stub(_inputs(request)))
        except Exception as error:
            return _failure(error)

    def _send_all(self, request: Any) -> None:  # noqa: ANN401 - pb_utils.InferenceRequest
        sender = request.get_response_sender()
        try:
            answers = self._stub(_inputs(request))
            for answer in [answers] if isinstance(answers, Mapping) else answers:
                sender.send(self._response(answer))
        except Exception as error:
            sender.send(_failure(error))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def _response(self, outputs: Mapping[str, Any]) -> Any:  # noqa: ANN401 - pb_utils.InferenceResponse
        return pb_utils.InferenceResponse(
            [
                pb_utils.Tensor(name, np.asarray(array, self._types.get(name)))
                for name, array in outputs.items()
            ]
        )


def _import_function(target: str) -> Callable[[dict[str, Any]], Any]:
    """Import MODULE:FUNCTION from Python's path or the current folder."""
    module, _, name = target.partition(":")
    folder = str(Path.cwd())
    sys.path.append(folder)
    try:
        function: Callable[[dict[str, Any]], Any] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise type(error)(f"--stub-model: {target}: {error}; looked in {folder} as well") from error
    finally:
        sys.path.remove(folder)
    return function


def _inputs(request: Any) -> dict[str, Any]:  # noqa: ANN401 - pb_utils.InferenceRequest
    return {tensor.name(): tensor.as_numpy().copy() for tensor in request.inputs()}


def _failure(error: Exception) -> Any:  # noqa: ANN401 - pb_utils.InferenceResponse
    text = f"stub: {type(error).__name__}: {error}"
    return pb_utils.InferenceResponse([], pb_utils.TritonError(text))


def _numpy_type(data_type: str) -> Any:  # noqa: ANN401 - a type of NumPy's
    if data_type == "TYPE_BF16":  # NumPy has no such type: keep the type of the array
        return None
    return pb_utils.triton_string_to_numpy(data_type)
