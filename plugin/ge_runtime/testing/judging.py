"""Whether an answer is the one that was expected, in words if it is not."""

from __future__ import annotations

from collections.abc import Mapping

from ge_runtime.config import RuntimeConfig
from ge_runtime.errors import RuntimeFault
from ge_runtime.scheduling.request_batch import Answer
from ge_runtime.specs import Array, TensorSpec
from ge_runtime.testing.drawing import Drawn
from ge_runtime.testing.elements import compare


class Judge:
    """Holds answers of one model against expected ones. Immutable."""

    def __init__(self, config: RuntimeConfig, tolerance: float | None) -> None:
        """tolerance: of floats, in place of `elements.TOLERANCES`."""
        self._config = config
        self._tolerance = tolerance
        self._specs = {spec.name: spec for spec in config.outputs}
        inputs = {spec.name: spec.dtype for spec in config.inputs}
        self._passed = {name: inputs[source] for name, source in config.passthrough.items()}

    def fault(
        self, drawn: Drawn, answer: Answer, expected: Mapping[str, Array], *, data_only: bool
    ) -> str | None:
        """What is wrong with the answer to `drawn`, None if nothing is.

        expected: the outputs of the graph. data_only: what lies past the ends of rows may differ.
        """
        if isinstance(answer, RuntimeFault):
            kind = type(answer).__name__
            return f"found {kind} '{answer}', expected an answer: by itself the request has one"
        passed = {name: drawn.originals[own] for name, own in self._config.passthrough.items()}
        wanted = {**expected, **passed}
        if sorted(answer) != sorted(wanted):
            return f"found outputs {', '.join(answer)}, expected {', '.join(wanted)}"
        for name, own in wanted.items():
            found = answer[name]
            if (found.dtype, found.shape) != (own.dtype, own.shape):
                text = (
                    f"found {found.dtype}{list(found.shape)}, expected {own.dtype}{list(own.shape)}"
                )
            elif name in expected:
                text = self._unlike(self._specs[name], drawn, found, own, data_only=data_only)
            else:
                text = str(compare(self._passed[name], found, own) or "")
            if text:
                return f"output '{name}': {text}"
        return None

    def _unlike(
        self, spec: TensorSpec, drawn: Drawn, found: Array, expected: Array, *, data_only: bool
    ) -> str:
        """How a graph's output differs from the expected one; empty if it does not."""
        inside = drawn.extent.inside(spec)
        inside = inside if self._config.batched else inside[0]
        overall = compare(spec.dtype, found, expected, tolerance=self._tolerance)
        within = overall and compare(
            spec.dtype, found, expected, tolerance=self._tolerance, where=inside
        )
        if overall is None or (data_only and within is None):
            return ""
        return str(within or f"{overall}; all of them past the ends of rows")
