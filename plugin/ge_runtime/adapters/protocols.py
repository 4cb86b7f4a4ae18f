"""What is used of `triton_python_backend_utils`, which is always an argument, never imported."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

from ge_runtime.specs import Array


class InputTensor(Protocol):
    """What is used of `pb_utils.Tensor`."""

    def name(self) -> str:
        """The input's name."""

    def as_numpy(self) -> Array:
        """The input's content; BYTES are an object array."""

    def to_dlpack(self) -> object:
        """A capsule of the input's memory: the only way to BF16."""


class Request(Protocol):
    """What is used of `pb_utils.InferenceRequest`."""

    def inputs(self) -> Sequence[InputTensor]:
        """All inputs sent."""

    def requested_output_names(self) -> Collection[str]:
        """The outputs the client wants: all, if it named none."""

    def request_id(self) -> str:
        """The client's name for the request, "" if it gave none."""

    def timeout(self) -> int:
        """Microseconds that the client grants the request, 0 for no end."""

    def is_cancelled(self) -> bool:
        """Whether the client has taken the request back."""


class PbUtils(Protocol):
    """What is used of the module `triton_python_backend_utils`."""

    @property
    def Tensor(self) -> Any:  # noqa: ANN401 - a class, of a name and content; `from_dlpack`
        """An output."""

    @property
    def InferenceResponse(self) -> Callable[..., object]:
        """An answer: output_tensors, error."""

    @property
    def TritonError(self) -> Any:  # noqa: ANN401 - a callable with codes as attributes
        """An error: its text and code."""

    @property
    def Logger(self) -> Any:  # noqa: ANN401 - a class of static methods
        """The server's log."""

    @property
    def MetricFamily(self) -> Any:  # noqa: ANN401 - a class with kinds as attributes
        """A family of metrics: its name, description and kind."""
