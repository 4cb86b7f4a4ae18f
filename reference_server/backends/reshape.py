"""Instances of models whose outputs say `reshape`."""

from __future__ import annotations

from collections.abc import Sequence

from reference_server.core.metadata import Signature
from reference_server.core.output_layouts import OutputLayouts, ShowingSink
from reference_server.core.ports import ModelInstance
from reference_server.core.request import InferRequest
from reference_server.core.response import Execution


def with_reshaped_outputs(instance: ModelInstance, signature: Signature) -> ModelInstance:
    """`instance`, giving every output in its `dims`; the same object if there is nothing to do."""
    layouts = OutputLayouts(signature)
    return _Reshaping(instance, layouts) if layouts else instance


class _Reshaping:
    """An instance that renames the shapes of another's outputs."""

    def __init__(self, instance: ModelInstance, layouts: OutputLayouts) -> None:
        self._instance = instance
        self._layouts = layouts

    @property
    def name(self) -> str:
        return self._instance.name

    def open(self) -> None:
        self._instance.open()

    def close(self) -> None:
        self._instance.close()

    def execute(self, requests: Sequence[InferRequest]) -> Execution:
        sinks = [request.sink for request in requests]
        for request in requests:
            request.sink = ShowingSink(self._layouts, request.sink)
        execution = self._instance.execute(requests)
        for request, sink in zip(requests, sinks, strict=True):
            request.sink = sink  # those that are given again get another
        for response in execution.responses:
            if response is not None:
                self._layouts.show(response)
        return execution
