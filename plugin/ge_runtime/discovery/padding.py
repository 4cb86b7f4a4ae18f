"""Decides how requests of different sizes may share an execution."""

from __future__ import annotations

from ge_runtime.discovery.configuration import MARKS, Configuration, Parameter, Question
from ge_runtime.discovery.masks import candidates, confirm, confirm_neutral
from ge_runtime.discovery.study import Content, Study


def decide_marks(study: Study, found: Configuration) -> set[str]:
    """Confirm masks and lengths; return the inputs that are generated."""
    generated: set[str] = set()
    for port, content, own in candidates(study):
        named = study.contents[port.name]
        unnamed = named is Content.VALUES or port.name in study.unnamed
        if unnamed and generated:
            continue  # the end of the data is marked already
        study.contents[port.name] = content
        family = "mask" if content is Content.MASK else "lengths"
        verdict = confirm(study, own)
        if verdict.confirmed:
            generated.add(port.name)
            names = ", ".join(axis.name for axis in own)
            why = f"Confirmed by experiment: {verdict.evidence}."
            found.add(f"{family}.{port.name}", names, why)
            continue
        study.contents[port.name] = Content.VALUES if unnamed else named
        study.rejected.add(port.name)
        if not unnamed and named is content:
            found.notes.append(
                f"Input '{port.name}' is not generated as a {family}: {verdict.evidence}."
            )
    return generated


def decide_neutral(study: Study, found: Configuration) -> None:
    """Find axes without a mask along which padding changes no answer."""
    marked = {
        axis for own in found.parameters if own.family in MARKS for axis in own.value.split(", ")
    }
    # The values of an input that may mark the end of the data are not those of requests here.
    if found.max_batch_size < 2 or study.rows.fixed == 1 or study.rejected:
        return
    for axis in study.axes:
        if axis.name in marked or not axis.varies:
            continue
        verdict, zeros = confirm_neutral(study, axis)
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
                    "yes: requests of all sizes share; add this line",
                    (Parameter(*line, ""),),
                )
            )
