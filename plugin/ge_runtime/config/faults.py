"""A list of faults that grows while a configuration is read, and is raised whole at the end."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

from ge_runtime.errors import ConfigFault


class Faults:
    """Collects what is wrong with one model's configuration. For one thread."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._found: list[str] = []

    def add(self, place: str, found: object, expected: str) -> None:
        """Note that `found` stands at `place` where `expected` should."""
        self._found.append(f"{place}: found {found}, expected {expected}")

    def add_unknown(self, place: str, kind: str, found: str, known: Iterable[str]) -> None:
        """Note a name of some `kind` that is none of `known`, with the nearest of them."""
        names = sorted(known)
        expected = f"one of: {', '.join(names)}" if names else f"none: this model has no {kind}"
        hint = did_you_mean(found, dict(zip(names, names, strict=True)))
        self.add(place, f"no {kind} '{found}'", expected + hint)

    def raise_any(self) -> None:
        """Raises ConfigFault with all that was added, if anything was."""
        if self._found:
            raise ConfigFault(self._model, self._found)


def did_you_mean(found: str, known: Mapping[str, str]) -> str:
    """The words that offer the name of `known` nearest to `found`, or none if all are far.

    known: each name, and what is offered for it.
    """
    near = difflib.get_close_matches(found, known, n=1)
    near = near or difflib.get_close_matches(found.lower(), known, n=1)
    return f"; did you mean '{known[near[0]]}'?" if near else ""
