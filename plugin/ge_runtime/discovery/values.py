"""Decides which inputs have generated values: constants and positions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from ge_runtime.discovery.configuration import Configuration, Question
from ge_runtime.discovery.study import Content, Study, Undecided, equal_answers

SAMPLING_RATES: Final = ("sr", "sample_rate", "sampling_rate")
"""Names of inputs without dims that are sampling rates."""
RATES: Final = (16000.0, 8000.0)
SCALARS: Final = (1.0, 0.0, 2.0)
"""Values that are tried for inputs without dims."""


def decide_constants(study: Study, given: Mapping[str, str], found: Configuration) -> None:
    """Decide which inputs are the same in all executions; `given` has the user's values by input.

    Candidates are the inputs in the study's `constants`: inputs without dims, unless known as data.

    Raises:
        Undecided: The graph accepts only some values of an input that is not constant.
    """
    for name, text in given.items():
        found.add(f"constant.{name}", text, "Given.")
    invented = [each for each in study.constants.items() if each[0] not in given]
    one = study.run() or {} if invented else {}
    for name, value in invented:
        others = RATES if name.lower() in SAMPLING_RATES else SCALARS
        results = {}
        for other in others:
            if other != value:
                study.constants[name] = other
                results[other] = study.run()
        study.constants[name] = value
        alike = all(
            result is not None and equal_answers(result, one) for result in results.values()
        )
        line = f"constant.{name}", f"{value:g}"
        if alike:
            values = ", ".join(f"{each:g}" for each in (value, *results))
            why = f"The answer does not depend on it: equal with {values}."
            found.add(*line, why)
        elif name.lower() in SAMPLING_RATES:
            (other,) = results
            effect = "fails" if results[other] is None else "answers differently"
            why = f"Assumed from the name; the graph executes with {value:g}, and {effect} "
            found.add(*line, f"{why}with {other:g}.")
            found.questions.append(
                Question(
                    f"Which sampling rate do your requests have? With {other:g} the graph "
                    f"{effect} at the size of this trial.",
                    f"{value:g}: leave the file as it is",
                    f"another: change `constant.{name}`, or run init with "
                    f"--constant {name}={other:g}",
                )
            )
        else:
            del study.constants[name]
            if not all(study.run(seed=seed) for seed in range(4)):
                raise Undecided(
                    f"input '{name}': found one number for the whole execution, and the graph "
                    f"accepts {value:g} but not every number; set it with --constant {name}=VALUE"
                )
            found.questions.append(
                Question(
                    f"Has '{name}' the same value in all requests?",
                    "no: each request sends it, and only requests of equal values share an "
                    "execution; leave the file as it is",
                    f"yes: run init again with --constant {name}=VALUE",
                )
            )


def decide_positions(study: Study, found: Configuration) -> set[str]:
    """Return the inputs whose positions are generated."""
    generated = set()
    for port in study.graph.inputs:
        own = [axis for axis in study.axes if {*axis.symbols} & {*port.symbols}]
        if (
            study.contents[port.name] is not Content.POSITIONS
            or len(own) != 1
            or len(port.dims) != 2
            or port.dims[0] not in study.rows.symbols
        ):
            continue
        values = study.values()
        changed = study.graph.run({**values, port.name: np.zeros_like(values[port.name])})
        if changed is None or equal_answers(changed, study.run() or {}):
            continue
        generated.add(port.name)
        why = (
            f"Named as positions, and confirmed: 0 to {own[0].largest - 1} are accepted, and "
            "the answer depends on them."
        )
        found.add(f"positions.{port.name}", own[0].name, why)
        found.questions.append(
            Question(
                f"Do all requests count '{port.name}' from 0?",
                "yes: leave the file as it is",
                f"no: delete the line `positions.{port.name}`, and add the input with the "
                "same dims and axes as the ids",
            )
        )
    return generated
