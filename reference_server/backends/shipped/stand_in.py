"""The `model.py` of stand-ins: returns made-up outputs of the configured names, types and shapes.

`reference-server try` writes this file for each model that cannot run here, so that the models that
use it can run. The values depend on the shapes only.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

#: The size of an output's free dimension if no input has a free dimension.
_FREE = 4


class TritonPythonModel:
    """One instance of the model."""

    def initialize(self, args: dict[str, str]) -> None:
        """Read the signature."""
        config = json.loads(args["model_config"])
        self._outputs = config["output"]
        self._inputs = config["input"]
        self._has_batch = config["max_batch_size"] > 0
        self._decoupled = bool((config.get("model_transaction_policy") or {}).get("decoupled"))
        #: For each output, the shape of the ensemble step's input that reads the output.
        self._readers = json.loads(config["parameters"]["STAND_IN_SHAPES"]["string_value"])
        reason = config["parameters"]["STAND_IN"]["string_value"]
        pb_utils.Logger.log_warn(f"STAND-IN for {args['model_name']}: {reason}")

    def execute(self, requests: Any) -> Any:  # noqa: ANN401 - pb_utils.InferenceRequest and -Response
        """Answer each request once."""
        answers = [self._answer(request) for request in requests]
        if not self._decoupled:
            return answers
        for request, answer in zip(requests, answers, strict=True):
            sender = request.get_response_sender()
            sender.send(answer, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return None

    def _answer(self, request: Any) -> Any:  # noqa: ANN401 - pb_utils.InferenceRequest and -Response
        given = {tensor.name(): tensor.shape() for tensor in request.inputs()}
        rows = 1
        free: list[int] = []
        for own in self._inputs:
            shape = list(given.get(own["name"], ()))
            if shape and self._has_batch:
                rows = shape.pop(0)
            dims = [int(dim) for dim in own["dims"]]
            sizes = [size for size, dim in zip(shape, dims, strict=False) if dim < 0]
            free = free if len(free) >= len(sizes) else sizes
        return pb_utils.InferenceResponse(
            [
                pb_utils.Tensor(
                    own["name"], _values(own["data_type"], self._shape(own, rows, free))
                )
                for own in self._outputs
            ]
        )

    def _shape(self, own: dict[str, Any], rows: int, free: Sequence[int]) -> list[int]:
        """Return an output's shape; free dimensions get the inputs' free sizes, in order."""
        sizes = iter(free)
        dims = [int(dim) for dim in own["dims"]]
        read = self._readers.get(own["name"], [])
        if self._has_batch:
            dims = [rows, *dims]
        if len(read) == len(dims):  # the reader refuses other sizes
            dims = [other if other > 0 else dim for dim, other in zip(dims, read, strict=True)]
        return [dim if dim > 0 else next(sizes, _FREE) for dim in dims]


def _values(data_type: str, shape: Sequence[int]) -> Any:  # noqa: ANN401 - an array
    count = math.prod(shape)
    if data_type == "TYPE_STRING":
        return np.full(shape, b"stand-in", np.object_)
    if data_type == "TYPE_BF16":
        raise ValueError("TYPE_BF16: stand-ins cannot return it, because NumPy has no such type")
    wanted = pb_utils.triton_string_to_numpy(data_type)
    whole = np.arange(count) % 7
    values = whole / 8 if np.issubdtype(wanted, np.floating) else whole % 2
    return values.astype(wanted).reshape(shape)
