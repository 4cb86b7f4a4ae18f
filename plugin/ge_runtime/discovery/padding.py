"""Decides by experiments how requests of different sizes may share an execution.

An input that marks the end of the data, such as a mask, is generated. Without one, requests share
an execution along axes on which padding changes no answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ge_runtime.discovery.configuration import MARKS, Configuration, Parameter, Question
from ge_runtime.discovery.graph import Port
from ge_runtime.discovery.study import Axis, Content, Study, equal_answers
from ge_runtime.specs import Array, DType, Relation, Tensors, TensorSpec
from ge_runtime.verification.distance import compare

_TOLERANCE: Final = 1e-3
"""Largest relative difference between padded and unpadded answers that is accepted as rounding.

The load check measures the rounding later, and decides.
"""
_GROWTH: Final = 16
"""The largest size of an experiment, in multiples of the axis's base."""


def decide_marks(study: Study, found: Configuration) -> set[str]:
    """Confirm masks and lengths; return the inputs that the runtime generates."""
    generated: set[str] = set()
    for port, content, own in _candidates(study):
        named = study.contents[port.name]
        unnamed = named is Content.VALUES or port.name in study.unnamed
        if unnamed and generated:
            continue  # the end of the data is marked already
        study.contents[port.name] = content
        family = "mask" if content is Content.MASK else "lengths"
        verdict = _confirm(study, own)
        if verdict.confirmed:
            generated.add(port.name)
            names = ", ".join(axis.name for axis in own)
            why = f"Confirmed by experiment: {verdict.evidence}."
            found.add(f"{family}.{port.name}", names, why)
            continue
        if content is Content.MASK and not unnamed and _is_inverted(study, port, own, found):
            continue
        study.contents[port.name] = Content.VALUES if unnamed else named
        study.rejected.add(port.name)
        if not unnamed and named is content:
            found.notes.append(
                f"Input '{port.name}' is not generated as a {family}: {verdict.evidence}."
            )
    return generated


def _is_inverted(study: Study, port: Port, axes: Sequence[Axis], found: Configuration) -> bool:
    """Confirm that a mask is 1 on padding; then requests may omit it, and padding is neutral."""
    before = study.contents[port.name]
    study.contents[port.name] = Content.INVERTED
    verdict = _confirm(study, axes)
    if not verdict.confirmed:
        study.contents[port.name] = before
        return False
    why = f"'{port.name}' is 1 on padding. Confirmed by experiment: {verdict.evidence}."
    found.add(f"pad.{port.name}", "1", why)
    for axis in axes:
        found.add(f"padding.{axis.name}", "neutral", why)
    return True


def decide_neutral(study: Study, found: Configuration) -> None:
    """Find axes without a mask along which padding changes no answer."""
    marked = {
        axis for own in found.parameters if own.family in MARKS for axis in own.value.split(", ")
    } | {own.name for own in found.parameters if own.family == "padding"}
    # A rejected input may still mark the end of the data, and trials invent its values: they prove
    # nothing.
    if found.max_batch_size < 2 or study.rows.fixed == 1 or study.rejected:
        return
    for axis in study.axes:
        if axis.name in marked or not axis.varies:
            continue
        verdict, zeros = _confirm_neutral(study, axis)
        line = f"padding.{axis.name}", "neutral"
        if verdict.confirmed:
            found.add(*line, f"Confirmed by experiment: {verdict.evidence}.")
        elif zeros:
            found.questions.append(
                Question(
                    f"Is padding with 0 along {axis.name} neutral? It changed no answer of "
                    f"this trial, but other padding did: {verdict.evidence}.",
                    "no, or not sure: only requests of equal sizes share an execution; leave "
                    "the file as it is",
                    "yes: requests of all sizes share an execution; add this line",
                    (Parameter(*line, ""),),
                )
            )


@dataclass(frozen=True, slots=True)
class _Verdict:
    """The result of testing whether an input marks the end of the data."""

    confirmed: bool
    evidence: str


def _confirm(study: Study, axes: Sequence[Axis]) -> _Verdict:
    """Test that values behind the end that a mask or length marks do not change the answer.

    The graph executes the same data with two different paddings, and without padding. The two
    padded answers must be equal in every bit; the unpadded answer may differ by rounding.
    """
    if not _has_values(study, axes):
        return _Verdict(False, "no other input has values along its axes")
    ends = _ends(study, axes)
    trial = _Trial(study, axes, ends)
    found = trial.difference((2, 3))
    if found:
        return _Verdict(False, found)
    unmasked = study.run(trial.sizes, seed=1, behind=2)
    if unmasked is not None and equal_answers(unmasked, trial.padded):
        return _Verdict(False, "the answer does not depend on it")
    return _Verdict(True, f"values behind {_text(axes, ends)} do not change the answer")


def _confirm_neutral(study: Study, axis: Axis) -> tuple[_Verdict, bool]:
    """Test that padding changes no answer, if no input marks the end of the data.

    Returns the verdict for any padding, and whether padding with 0 changed no answer.
    """
    if axis.largest < 2 * axis.multiple + axis.smallest or not _has_values(study, [axis]):
        return _Verdict(False, "no input has values along the axis"), False
    texts = []
    for growth, behind in ((1, 0.0), (2, 0.0), (1, 2), (2, 3), (1, 100.0)):
        part, full = _part(axis), min(axis.base * growth, axis.largest)
        full = full // axis.multiple * axis.multiple
        if part >= full:
            return _Verdict(False, "the axis has too few sizes"), False
        ends = {axis.name: (part, full)}
        found = _Trial(study, [axis], ends).difference((0.0, behind))
        if found:
            return _Verdict(False, found), behind != 0.0
        texts.append(f"{part} of {full}")
    sizes_text = " and ".join(dict.fromkeys(texts))
    return _Verdict(
        True,
        f"padding of 0, of random values and of 100 behind {axis.name} "
        f"{sizes_text} changes no answer",
    ), True


def _has_values(study: Study, axes: Sequence[Axis]) -> bool:
    symbols = {symbol for axis in axes for symbol in axis.symbols}
    return any(
        study.contents[own.name] is Content.VALUES and symbols & {*own.symbols}
        for own in study.graph.inputs
    )


def _part(axis: Axis, full: int = 0) -> int:
    """Return a size of the data that is below `full`, by default below the base."""
    step = axis.multiple
    return max(axis.smallest, ((full or axis.base) * 5 // 8) // step * step)


def _ends(study: Study, axes: Sequence[Axis]) -> dict[str, tuple[int, int]]:
    """Return for each axis the size of the data and the larger size of the execution.

    If possible, the outputs that depend on the axis have different sizes at these two sizes.
    """
    found = {}
    texts = {dim for dims in study.relations.values() for dim in dims if isinstance(dim, str)}
    for axis in axes:
        own = [text for text in texts if {*Relation.parse(text).axes} == {axis.name}]
        full = axis.base
        while any(
            _sized(text, axis, _part(axis, full)) == _sized(text, axis, full) for text in own
        ):
            if 2 * full > axis.largest or full >= _GROWTH * axis.base:
                break
            full *= 2
        found[axis.name] = _part(axis, full), full
    return found


def _sized(text: str, axis: Axis, size: int) -> int:
    return Relation.parse(text).size({axis.name: size})


def _text(axes: Sequence[Axis], ends: Mapping[str, tuple[int, int]]) -> str:
    parts = ((axis.name, *ends[axis.name]) for axis in axes)
    return ", ".join(f"{name} {part} of {full}" for name, part, full in parts)


class _Trial:
    """Executions of the same data alone and with padding."""

    def __init__(
        self, study: Study, axes: Sequence[Axis], ends: Mapping[str, tuple[int, int]]
    ) -> None:
        self._study = study
        self._parts = {axis.name: ends[axis.name][0] for axis in axes}
        self._true = {one: ends[axis.name][0] for axis in axes for one in axis.symbols}
        self.sizes = study.sizes | {
            one: ends[axis.name][1] for axis in axes for one in axis.symbols
        }
        self.padded: Tensors = {}
        """The results of the first padding."""

    def difference(self, behinds: tuple[int | float, int | float]) -> str:
        """Return how padding changes the answer, or why the trial failed; else empty."""
        study = self._study
        padded, other = (
            study.run(self.sizes, seed=1, true=self._true, behind=behind) for behind in behinds
        )
        alone = study.graph.run(self._cut())
        if padded is None or other is None or alone is None:
            return f"an execution failed: {study.graph.last_error}"
        changed = study.run(self.sizes, seed=2, true=self._true, behind=behinds[0])
        if changed is not None and all(
            np.array_equal(self._within(changed, name), self._within(padded, name))
            for name in padded
        ):
            return "the answer does not depend on the data"
        self.padded = padded
        for output in study.graph.outputs:
            spec = TensorSpec(output.name, output.dtype, ())
            first, second, single = (
                self._within(own, output.name) for own in (padded, other, alone)
            )
            if (difference := compare(spec, first, second)) is not None:
                return f"values behind the data change the answer: {difference}"
            scale = float(np.max(np.abs(np.nan_to_num(single.astype(np.float64))), initial=0.0))
            difference = compare(spec, first, single)
            if difference is not None and difference.distance > _TOLERANCE * scale:
                return f"padding changes the answer: {difference}"
        return ""

    def _cut(self) -> dict[str, Array]:
        """Return the inputs of the padded execution without the padding."""
        values = self._study.values(self.sizes, seed=1, true=self._true)
        return {
            port.name: np.ascontiguousarray(
                values[port.name][
                    tuple(
                        slice(self._true.get(dim) if isinstance(dim, str) else None)
                        for dim in port.dims
                    )
                ]
            )
            for port in self._study.graph.inputs
        }

    def _within(self, found: Tensors, name: str) -> Array:
        """Return the part of an output that belongs to the data."""
        places: list[slice] = []
        for dim in self._study.relations[name]:
            size = None
            if isinstance(dim, str):
                relation = Relation.parse(dim)
                if {*relation.axes} <= self._parts.keys():
                    size = max(relation.size(self._parts), 0)
            places.append(slice(size))
        rows = self._study.rows.outputs[name]
        if rows is not None:
            places.insert(rows, slice(None))
        return found[name][tuple(places)]


def _candidates(study: Study) -> list[tuple[Port, Content, list[Axis]]]:
    """Return the inputs that may mark the end of data, with their possible content and axes.

    A mask has the rows and one or more axes of another input, and no other dims. A length has one
    element for each row. Inputs with the name of a mask or length come first.
    """
    found = []
    for port in study.graph.inputs:
        if port.name in study.constants or port.dtype is DType.BYTES:
            continue
        own = [axis for axis in study.axes if {*axis.symbols} & {*port.symbols}]
        others = {dim for other in study.graph.inputs if other is not port for dim in other.dims}
        named = study.contents[port.name]
        whole = port.dtype.is_integer or port.dtype is DType.BOOL
        shared = bool(own) and all({*axis.symbols} & others for axis in own)
        if named is Content.MASK or (named is Content.VALUES and whole):
            if shared and len(port.dims) == len(own) + 1:
                found.append((port, Content.MASK, own))
        elif named is Content.LENGTH and study.axes:
            found.append((port, Content.LENGTH, study.axes[:1]))
    return sorted(
        found,
        key=lambda each: (
            study.contents[each[0].name] is Content.VALUES or each[0].name in study.unnamed
        ),
    )
