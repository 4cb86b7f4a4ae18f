"""What `ge-runtime settle` found, for people and for an issue."""

from __future__ import annotations

import platform
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ge_runtime.cli.settle.questions import Question
from ge_runtime.memory.table import aligned

_WIDTH: Final = 100
_FORMAT: Final = 1


@dataclass(frozen=True)
class Result:
    """What came of a question."""

    question: Question
    outcome: str
    """answered, failed (a call that had to succeed did not), hung, died, or skipped."""
    answer: str
    evidence: Mapping[str, Any]
    seconds: float


def heading(soc: str) -> str:
    """What the answers are about."""
    simulated = " It is a simulator: its answers are those it was written with."
    return f"Asking {soc}.{simulated if is_simulated(soc) else ''}"


def lines(result: Result, soc: str) -> list[str]:
    """A question with its answer and what was seen."""
    evidence = "; ".join(
        f"{name}: {value}" for name, value in result.evidence.items() if name != "traceback"
    )
    cells = [
        ("assumed", result.question.assumed),
        (_word(result, soc), result.answer),
        *([("seen", evidence)] if evidence else []),
    ]
    labels = aligned([(label,) for label, _ in cells], "<")
    shown = _wrapped(f"{result.question.number:>2}  ", result.question.text)
    for label, (_, text) in zip(labels, cells, strict=True):
        shown += _wrapped(f"    {label:<{max(map(len, labels))}}  ", text)
    return shown


def as_json(results: Sequence[Result], soc: str, about: Mapping[str, object]) -> dict[str, object]:
    """All of it. about: more that is known of the machine."""
    return {
        "format": _FORMAT,
        "soc": soc,
        "simulated": is_simulated(soc),
        "machine": {
            "system": platform.platform(),
            "python": platform.python_version(),
            "numpy": np.__version__,
            **about,
        },
        "questions": [
            {
                "number": each.question.number,
                "question": each.question.text,
                "assumed": each.question.assumed,
                "otherwise": each.question.otherwise,
                "outcome": each.outcome,
                "answered_by": soc,
                "answer": each.answer,
                "evidence": each.evidence,
                "seconds": round(each.seconds, 3),
            }
            for each in results
        ],
    }


def is_simulated(soc: str) -> bool:
    """Whether it is no device that answers."""
    return "Simulator" in soc


def _word(result: Result, soc: str) -> str:
    who = "simulator" if is_simulated(soc) else "device"
    return f"the {who}" if result.outcome == "answered" else result.outcome


def _wrapped(label: str, text: str) -> list[str]:
    return textwrap.wrap(
        " ".join(text.split()),
        _WIDTH,
        initial_indent=label,
        subsequent_indent=" " * len(label),
        break_on_hyphens=False,
    )
