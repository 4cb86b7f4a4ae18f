"""What a request of a sequence leaves to the next one."""

from __future__ import annotations

from collections.abc import Mapping

from reference_server.core.request import ResponseSink
from reference_server.core.response import InferResponse
from reference_server.core.tensor import Tensor


class StateSink:
    """Takes the state outputs out of a request's responses, and keeps them in `states`.

    `inputs` names the input that each state output becomes; `shown` are those that go to the
    client as well. A response with an error leaves the states as they were.
    """

    def __init__(
        self,
        sink: ResponseSink,
        states: dict[str, Tensor],
        inputs: Mapping[str, str],
        shown: frozenset[str],
    ) -> None:
        self._sink = sink
        self._states = states
        self._inputs = inputs
        self._shown = shown

    def send(self, response: InferResponse) -> None:
        """Keep the states, and pass on the rest."""
        if response.error is None and not response.empty:
            passed: list[Tensor] = []
            for tensor in response.outputs:
                name = self._inputs.get(tensor.name)
                if name is not None:
                    # A copy: the model may go on writing to what it answered, or was given.
                    array = tensor.array().copy()
                    self._states[name] = Tensor(name, tensor.datatype, tensor.shape, array=array)
                if name is None or tensor.name in self._shown:
                    passed.append(tensor)
            response.outputs = passed
        self._sink.send(response)
