"""Which models use which: what a change touches, and in what order it is carried out.

Pure: names in, names and errors out. Only ensembles use other models.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from reference_server.core.errors import ServerError, invalid_arg

#: The models that one uses, each with the versions that it insists on.
Steps = Mapping[str, frozenset[int]]


@dataclass(frozen=True, slots=True)
class _Node:
    steps: Steps
    explicit: bool


class DependencyGraph:
    """The models that are wanted now, and what each of them uses. Not thread-safe.

    A model may use one that is not here; that is an error of its own, which `errors` tells.
    """

    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._nodes

    def steps(self, name: str) -> Steps:
        """What the model uses; nothing for one that is not here."""
        node = self._nodes.get(name)
        return {} if node is None else node.steps

    def put(self, name: str, steps: Steps, *, explicit: bool) -> None:
        """Add the model, or replace what is known of it.

        `explicit` tells that it was asked for by name, and not for the sake of an ensemble.
        """
        self._nodes[name] = _Node(steps, explicit)

    def remove(self, names: Iterable[str], *, with_unused: bool = False) -> set[str]:
        """Take models out; returns those that went.

        `with_unused` takes along what they alone used, unless it was asked for by name.
        """
        removed: set[str] = set()
        waiting = list(names)
        for name in waiting:  # which grows on the way
            node = self._nodes.pop(name, None)
            if node is None:
                continue
            removed.add(name)
            if with_unused:
                waiting += [
                    used
                    for used in node.steps
                    if used in self._nodes
                    and not self._nodes[used].explicit
                    and not self._direct_users(used)
                ]
        return removed

    def users(self, names: Iterable[str]) -> set[str]:
        """The models that use any of `names`, directly or through others; not `names` themselves.

        A model of `names` that uses another one of them is left out as well.
        """
        start = set(names)
        found = set(start)
        waiting = list(start)
        for name in waiting:
            fresh = [user for user in self._direct_users(name) if user not in found]
            found.update(fresh)
            waiting += fresh
        return found - start

    def used(self, names: Iterable[str]) -> set[str]:
        """`names` and all that they use, directly or through others."""
        found = set(names)
        waiting = list(found)
        for name in waiting:
            fresh = [step for step in self.steps(name) if step not in found]
            found.update(fresh)
            waiting += fresh
        return found

    def errors(self, names: Iterable[str]) -> dict[str, ServerError]:
        """Those of `names` that cannot be loaded: they miss a model, or use themselves."""
        errors: dict[str, ServerError] = {}
        for name in sorted(names):
            missing = sorted(step for step in self.steps(name) if step not in self._nodes)
            if missing:
                errors[name] = invalid_arg(
                    f"ensemble {name} contains models that are not available or ambiguous: "
                    f"{', '.join(missing)}"
                )
            elif name not in errors and (circle := self._circle(name)):
                error = invalid_arg(
                    f"circular dependency between ensembles: {name} -> ... -> {circle[-1]} "
                    f"-> {name}"
                )
                errors.update((member, error) for member in circle if member not in errors)
        return errors

    def waves(self, names: Iterable[str]) -> Iterator[list[str]]:
        """`names` in steps: whatever a model uses comes in an earlier one.

        Models that use themselves come last, in one step.
        """
        waiting = set(names)
        while waiting:
            wave = [name for name in waiting if waiting.isdisjoint(self.steps(name))]
            wave = sorted(wave or waiting)
            yield wave
            waiting.difference_update(wave)

    def _direct_users(self, name: str) -> list[str]:
        return [user for user, node in self._nodes.items() if name in node.steps]

    def _circle(self, start: str) -> list[str]:
        """The way from `start` through its users to the last before `start` again, if any."""
        ways = [[start]]
        seen = {start}
        for way in ways:
            for user in self._direct_users(way[-1]):
                if user == start:
                    return way
                if user not in seen:
                    seen.add(user)
                    ways.append([*way, user])
        return []
