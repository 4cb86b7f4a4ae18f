"""Decides how requests of different sizes may share an execution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ge_runtime.discovery.configuration import Configuration, Parameter, Question, one_line
from ge_runtime.discovery.masks import candidates, confirm, confirm_neutral
from ge_runtime.discovery.rows import Rows
from ge_runtime.discovery.study import Axis, Content, Study


def decide_marks(
    study: Study,
    axes: Sequence[Axis],
    sizes: Mapping[str, int],
    relations: Mapping[str, tuple[int | str, ...]],
    found: Configuration,
    rows: Rows,
) -> set[str]:
    """Confirm masks and lengths; return the inputs that are generated."""
    generated: set[str] = set()
    for port, content, own in candidates(study, axes):
        named = study.contents[port.name]
        unnamed = named is Content.VALUES or port.name in study.unnamed
        if unnamed and generated:
            continue  # the end of the data is marked already
        study.contents[port.name] = content
        family = "mask" if content is Content.MASK else "lengths"
        verdict = confirm(study, port, own, sizes, relations, rows.outputs)
        if verdict.confirmed:
            generated.add(port.name)
            names = ", ".join(axis.name for axis in own)
            why = one_line(f"Confirmed by experiment: {verdict.evidence}.")
            found.parameters.append(Parameter(f"{family}.{port.name}", names, why))
            continue
        study.contents[port.name] = Content.VALUES if unnamed else named
        study.rejected.add(port.name)
        if not unnamed and named is content:
            note = f"Input '{port.name}' is not generated as a {family}: {verdict.evidence}."
            found.notes.append(one_line(note))
    return generated


def decide_neutral(
    study: Study,
    axes: Sequence[Axis],
    sizes: Mapping[str, int],
    relations: Mapping[str, tuple[int | str, ...]],
    found: Configuration,
    rows: Rows,
) -> None:
    """Find axes without a mask along which padding changes no answer."""
    marked = {
        axis
        for own in found.parameters
        if own.key.split(".")[0] in ("mask", "lengths")
        for axis in own.value.split(", ")
    }
    # Experiments invent values for an input that may mark the end of the data: no verdict.
    if found.max_batch_size < 2 or rows.fixed == 1 or study.rejected:
        return
    for axis in axes:
        if axis.name in marked or not axis.varies:
            continue
        verdict, zeros = confirm_neutral(study, axis, sizes, relations, rows.outputs)
        line = Parameter(f"padding.{axis.name}", "neutral", "")
        if verdict.confirmed:
            why = one_line(f"Confirmed by experiment: {verdict.evidence}.")
            found.parameters.append(replace(line, evidence=why))
        elif zeros:
            found.questions.append(
                Question(
                    f"Is padding with 0 along {axis.name} neutral? It changed no answer of "
                    f"this trial, but other padding did: {one_line(verdict.evidence)}.",
                    "no, or not sure: only requests of equal sizes share an execution; leave "
                    "the file as it is",
                    "yes: requests of all sizes share; add this line",
                    (line,),
                )
            )
