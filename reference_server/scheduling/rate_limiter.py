"""The rate limiter: which instances of all models may execute, by resources and priorities."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from reference_server.config.scheduler_settings import InstanceConfig
from reference_server.core.errors import invalid_arg

#: How much there is of a resource, by its name and whether it is the whole server's.
Limits = Mapping[tuple[str, bool], int]


@dataclass(eq=False, slots=True)
class RateLimitedInstance:
    """What one instance needs while it executes, and how often it has had a turn.

    Of `priority` 1 is the first; 2 gets half as many turns. `granted` is called when it is its
    turn.
    """

    priority: int
    needs: Mapping[str, int]
    turns: int = 0
    granted: Callable[[], None] = field(default=lambda: None, repr=False)

    @property
    def rank(self) -> int:
        """The smallest goes first."""
        return (self.turns + 1) * self.priority


class ResourceManager:
    """Counts what is free and decides whose turn it is. Pure; not thread-safe.

    `limits` says how much there is of each resource; None: as much as the neediest instance needs.
    """

    def __init__(self, limits: Limits | None) -> None:
        self._limits = limits
        self._members: list[tuple[InstanceConfig, RateLimitedInstance]] = []
        self._used: dict[str, int] = {}
        self._waiting: list[RateLimitedInstance] = []

    def __repr__(self) -> str:
        used = ", ".join(f"{name}: {count}" for name, count in self._used.items() if count)
        return f"ResourceManager({len(self._waiting)} waiting; in use: {used or 'nothing'})"

    def add(self, instances: Iterable[InstanceConfig]) -> list[RateLimitedInstance]:
        """What stands for the instances of one model.

        Raises ServerError INVALID_ARG if one could never execute, or if a resource is the whole
        server's for one instance and a device's for another.
        """
        added = [(instance, _rate_limited(instance)) for instance in instances]
        scopes: dict[str, bool] = {}
        for instance, _ in (*self._members, *added):
            for resource in instance.resources:
                if scopes.setdefault(resource.name, resource.is_global) != resource.is_global:
                    raise invalid_arg(
                        f'Resource "{resource.name}" is present as both global and device-specific '
                        "resource in the model configuration."
                    )
        if self._limits is not None:
            for name, needed in sorted(_most(limited for _, limited in added).items()):
                limit = self._limits.get((name, scopes[name]), 0)
                if needed > limit:
                    raise invalid_arg(
                        f'Resource count for "{name}" is limited to {limit} which will prevent '
                        "scheduling of one or more model instances, the minimum required count is "
                        f"{needed}"
                    )
        self._members += added
        return [limited for _, limited in added]

    def remove(self, instances: Iterable[RateLimitedInstance]) -> list[RateLimitedInstance]:
        """Forget the instances of a model that is closed. Returns those whose turn it is now."""
        gone = set(map(id, instances))
        self._members = [member for member in self._members if id(member[1]) not in gone]
        return self._grant()

    def ask(self, limited: RateLimitedInstance) -> list[RateLimitedInstance]:
        """An instance has something to run. Returns those whose turn it is now."""
        self._waiting.append(limited)
        return self._grant()

    def give_back(self, limited: RateLimitedInstance) -> list[RateLimitedInstance]:
        """An instance has run. Returns those whose turn it is now."""
        for name, count in limited.needs.items():
            self._used[name] -= count
        return self._grant()

    def _available(self) -> Mapping[str, int]:
        """How much there is of each resource that is needed."""
        if self._limits is None:
            return _most(limited for _, limited in self._members)
        return {
            resource.name: self._limits.get((resource.name, resource.is_global), 0)
            for instance, _ in self._members
            for resource in instance.resources
        }

    def _grant(self) -> list[RateLimitedInstance]:
        """Let those go, by rank, for whom there is enough and who take nothing from one before."""
        total = self._available()
        granted: list[RateLimitedInstance] = []
        reserved: dict[str, int] = {}
        # Who does not fit reserves what it needs: those behind it by rank get none of that, so that
        # nobody is passed over for needing more.
        for limited in sorted(self._waiting, key=lambda limited: limited.rank):
            fits = all(
                self._used.get(name, 0) + reserved.get(name, 0) + count <= total.get(name, 0)
                for name, count in limited.needs.items()
            )
            taken = self._used if fits else reserved
            for name, count in limited.needs.items():
                taken[name] = taken.get(name, 0) + count
            if fits:
                limited.turns += 1
                granted.append(limited)
        for limited in granted:
            self._waiting.remove(limited)
        return granted


def _rate_limited(instance: InstanceConfig) -> RateLimitedInstance:
    needs: dict[str, int] = {}
    for resource in instance.resources:
        needs[resource.name] = max(resource.count, needs.get(resource.name, 0))
    return RateLimitedInstance(instance.priority, needs)


def _most(instances: Iterable[RateLimitedInstance]) -> dict[str, int]:
    """How much of each resource the neediest of them needs."""
    most: dict[str, int] = {}
    for limited in instances:
        for name, count in limited.needs.items():
            most[name] = max(count, most.get(name, 0))
    return most


class RateLimiter:
    """The one of a server: tells instances when it is their turn. Any thread."""

    def __init__(self, limits: Limits | None) -> None:
        self._resources = ResourceManager(limits)
        self._lock = threading.Lock()

    def add(self, instances: Iterable[InstanceConfig]) -> list[RateLimitedInstance]:
        """What stands for a model's instances. Raises ServerError if one could never execute."""
        with self._lock:
            return self._resources.add(instances)

    def remove(self, instances: Iterable[RateLimitedInstance]) -> None:
        """Forget the instances of a model that is closed."""
        with self._lock:
            granted = self._resources.remove(instances)
        _notify(granted)

    def ask(self, limited: RateLimitedInstance, granted: Callable[[], None]) -> None:
        """Call `granted` once it is this instance's turn: maybe now, maybe on another's thread."""
        with self._lock:
            limited.granted = granted
            now = self._resources.ask(limited)
        _notify(now)

    def end(self, limited: RateLimitedInstance, *, used: bool = True) -> None:
        """The turn is over; not `used`: there was nothing to execute after all."""
        with self._lock:
            limited.turns -= not used
            granted = self._resources.give_back(limited)
        _notify(granted)


def _notify(instances: Iterable[RateLimitedInstance]) -> None:
    for limited in instances:
        limited.granted()
