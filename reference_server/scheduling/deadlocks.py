"""Which instances can do nothing until another model answers, and when that would be never.

Pure: the caller guards it. Only a certain deadlock counts. An instance is stuck if the request that
it waits for is being executed by an instance that is stuck, or has not been begun and all instances
that could begin it are stuck.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from reference_server.core.request import InferRequest


@dataclass(slots=True, eq=False)
class Crew:
    """The instances of one loaded version of a model, `size` of them."""

    model: str
    size: int


@dataclass(slots=True, eq=False)
class Member:
    """One instance of a crew."""

    crew: Crew
    name: str


@dataclass(slots=True, frozen=True, eq=False)
class _Wait:
    member: Member
    batch: Sequence[InferRequest]
    request: InferRequest
    target: Crew


class Waits:
    """The waiting instances. Not thread-safe."""

    def __init__(self) -> None:
        self._waits: dict[Member, _Wait] = {}

    def __repr__(self) -> str:
        return f"Waits({', '.join(member.name for member in self._waits)})"

    def begin(
        self, member: Member, batch: Sequence[InferRequest], request: InferRequest, target: Crew
    ) -> str | None:
        """`member`, which must answer `batch`, is about to wait for `target` to answer `request`.

        Returns None, or if it would wait for ever who waits for whom; then it does not wait.
        """
        self._waits[member] = _Wait(member, batch, request, target)
        stuck = self._stuck()
        if member not in stuck:
            return None
        story = self._story(member, stuck)
        del self._waits[member]
        return story

    def end(self, member: Member) -> None:
        """`member` waits no more."""
        self._waits.pop(member, None)

    def _stuck(self) -> set[Member]:
        """The greatest set of waiting members in which each waits for others of it alone."""
        stuck = set(self._waits)
        while freed := {member for member in stuck if not self._blockers(member, stuck)}:
            stuck -= freed
        return stuck

    def _blockers(self, member: Member, stuck: set[Member]) -> Sequence[Member]:
        """Those of `stuck` that keep `member` from its answer; none if others may give it."""
        wait = self._waits[member]
        executing = self._executing(wait.request)
        if executing is not None:
            return [executing] if executing in stuck else []
        if wait.request.is_begun:
            return []
        crew = [other for other in self._waits if other in stuck and other.crew is wait.target]
        return crew if len(crew) == wait.target.size else []

    def _executing(self, request: InferRequest) -> Member | None:
        for wait in self._waits.values():
            if any(executed is request for executed in wait.batch):
                return wait.member
        return None

    def _story(self, member: Member, stuck: set[Member]) -> str:
        path: list[Member] = []
        while member not in path:
            path.append(member)
            member = self._blockers(member, stuck)[0]
        return _told(self._waits[each] for each in path[path.index(member) :])


def _told(cycle: Iterable[_Wait]) -> str:
    return ", ".join(f"'{wait.member.name}' waits for '{wait.target.model}'" for wait in cycle)
