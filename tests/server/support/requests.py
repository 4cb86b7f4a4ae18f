"""Core requests in few words, and the sinks that their responses come to."""

from __future__ import annotations

import queue
from collections.abc import Mapping, Sequence

import numpy as np

from reference_server.core.metadata import Signature, TensorConfig
from reference_server.core.request import InferRequest, InferResponse
from reference_server.core.tensor import DataType, Tensor, datatype_of

#: How long a test waits for another thread before it fails; no test that passes waits so long.
PATIENCE_S = 60


class NullSink:
    """A sink that drops what it is given."""

    def send(self, response: InferResponse) -> None:
        """Drop `response`."""


class BrokenSink:
    """A sink with a defect."""

    def send(self, response: InferResponse) -> None:
        raise OSError("gone")


class Answers:
    """A sink that keeps what it is sent, in order."""

    def __init__(self) -> None:
        self._responses: queue.SimpleQueue[InferResponse] = queue.SimpleQueue()

    def send(self, response: InferResponse) -> None:
        self._responses.put(response)

    def wait(self) -> InferResponse:
        """The next response; fails the test if none comes."""
        return self._responses.get(timeout=PATIENCE_S)

    @property
    def is_empty(self) -> bool:
        """True if nothing has come that nobody waited for."""
        return self._responses.empty()


def array_tensor(name: str, value: object, dtype: object = None) -> Tensor:
    """A tensor that holds `value` as an array."""
    array = np.asarray(value, dtype=dtype)
    return Tensor(name, datatype_of(array), array.shape, array=array)


def raw_tensor(name: str, datatype: DataType | None, shape: Sequence[int], raw: bytes) -> Tensor:
    """A tensor as it comes from the wire."""
    return Tensor(name, datatype, tuple(shape), raw=memoryview(raw))


def a_request(*tensors: Tensor, **fields: object) -> InferRequest:
    """A request for model `m` with these inputs."""
    settings: dict[str, object] = {"model_name": "m", "sink": NullSink()}
    return InferRequest(inputs={tensor.name: tensor for tensor in tensors}, **(settings | fields))


def signature(
    inputs: Mapping[str, tuple[object, ...]] | None = None,
    outputs: Mapping[str, tuple[object, ...]] | None = None,
    *,
    name: str = "m",
    max_batch_size: int = 0,
) -> Signature:
    """A model's signature; tensors by name, each a data type, dims and maybe keywords."""
    return Signature(
        name,
        max_batch_size,
        tuple(_config(key, *given) for key, given in (inputs or {}).items()),
        tuple(_config(key, *given) for key, given in (outputs or {}).items()),
    )


def _config(
    name: str, datatype: DataType, dims: Sequence[int], more: Mapping[str, object] | None = None
) -> TensorConfig:
    return TensorConfig(name, datatype, tuple(dims), **(more or {}))
