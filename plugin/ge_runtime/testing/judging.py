"""Whether an answer is the one that was expected, in words if it is not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ge_runtime.config import RuntimeConfig
from ge_runtime.errors import RuntimeFault
from ge_runtime.scheduling.window import Answer
from ge_runtime.specs import UNKNOWN, Array, TensorSpec
from ge_runtime.testing.drawing import Drawn
from ge_runtime.testing.elements import compare


class Judge:
    """Holds answers of one model against expected ones. Immutable."""

    def __init__(self, config: RuntimeConfig, tolerance: float | None) -> None:
        """tolerance: of floats, in place of `elements.TOLERANCES`."""
        self._config = config
        self._tolerance = tolerance

    def fault(
        self, drawn: Drawn, answer: Answer, expected: Mapping[str, Array], *, data_only: bool
    ) -> str | None:
        """What is wrong with the answer to `drawn`, None if nothing is.

        expected: the outputs of the graph. data_only: what lies past the ends of rows may differ.
        """
        if isinstance(answer, RuntimeFault):
            kind = type(answer).__name__
            return f"found {kind} '{answer}', expected an answer: by itself the request has one"
        outputs = list(self._outputs(drawn, expected))
        names = [spec.name for spec, _ in outputs]
        if sorted(answer) != sorted(names):
            return f"found outputs {', '.join(answer)}, expected {', '.join(names)}"
        for spec, own in outputs:
            found = answer[spec.name]
            if (found.dtype, found.shape) != (own.dtype, own.shape):
                return (
                    f"output '{spec.name}': found {found.dtype}{list(found.shape)}, "
                    f"expected {own.dtype}{list(own.shape)}"
                )
            difference = self._difference(spec, drawn, found, own, data_only=data_only)
            if difference:
                return f"output '{spec.name}': {difference}"
        return None

    def _outputs(
        self, drawn: Drawn, expected: Mapping[str, Array]
    ) -> Iterator[tuple[TensorSpec, Array]]:
        """What the graph gives, and the inputs that are passed on."""
        config = self._config
        for spec in config.outputs:
            yield spec, expected[spec.name]
        inputs = {spec.name: spec for spec in config.inputs}
        for name, source in config.passes.items():
            own = drawn.originals.get(source)
            if own is None:  # an optional input that was left out
                own = drawn.whole[source] if config.batched else drawn.whole[source][0]
            # Passed on as it is: what lies past the ends of rows belongs to it.
            yield TensorSpec(name, inputs[source].dtype, (UNKNOWN,) * own.ndim), own

    def _difference(
        self, spec: TensorSpec, drawn: Drawn, found: Array, expected: Array, *, data_only: bool
    ) -> str | None:
        batched = self._config.batched
        inside = drawn.extent.inside(spec)
        inside = inside if batched else inside[0]
        tolerance = self._tolerance
        within = inside if data_only else None
        difference = compare(spec.dtype, found, expected, tolerance=tolerance, where=within)
        if difference is None:
            return None
        beyond = compare(spec.dtype, found, expected, tolerance=tolerance, where=inside) is None
        return f"{difference}; all of them past the ends of rows" if beyond else str(difference)
