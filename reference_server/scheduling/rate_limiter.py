"""The rate limiter: decides by resources and priorities which instances may execute."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from reference_server.config.scheduler_settings import InstanceConfig
from reference_server.core.errors import invalid_arg

#: The amount of each resource, by its name and whether it is global (shared by all devices).
Limits = Mapping[tuple[str, bool], int]


@dataclass(eq=False, slots=True)
class RateLimitedInstance:
    """The resources that one instance needs while it executes, and its number of grants.

    Priority 1 is the highest; an instance of priority 2 gets half as many grants. `granted` is
    called when the instance may execute. `holds` is True from a grant to its release.
    """

    priority: int
    needs: Mapping[str, int]
    grants: int = 0
    holds: bool = False
    granted: Callable[[], None] = field(default=lambda: None, repr=False)

    @property
    def rank(self) -> tuple[int, int]:
        """The sort key among waiting instances; the smallest is granted first.

        Among instances of equal rank, the first in order of arrival is granted; in Triton, the
        first in its heap.
        """
        return (self.grants + 1) * self.priority, self.priority


class ResourceManager:
    """Counts free resources and decides which instances may execute. Pure; not thread-safe.

    As in Triton, each request and each release grants at most one waiting instance: the instance of
    the smallest rank. If that instance does not fit, none is granted, even if another would fit. A
    release by an instance that waits again counts as two events.

    Args:
        limits: The amount of each resource. None: the largest amount that any instance needs.
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
        """Register the instances of one model.

        Raises ServerError INVALID_ARG if an instance could never execute, or if a resource is
        global for one instance and device-specific for another.
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
            for name, needed in sorted(_largest_needs(limited for _, limited in added).items()):
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
        """Remove the instances of a closed model. Return the instances that may execute now."""
        gone = set(map(id, instances))
        self._members = [member for member in self._members if id(member[1]) not in gone]
        return self._grant(1)

    def request(self, limited: RateLimitedInstance) -> list[RateLimitedInstance]:
        """Request resources for an instance. Return the instances that may execute now.

        The next request of an instance that still holds resources waits for their release.
        """
        self._waiting.append(limited)
        return [] if limited.holds else self._grant(1)

    def release(self, limited: RateLimitedInstance) -> list[RateLimitedInstance]:
        """Release an instance's resources. Return the instances that may execute now."""
        limited.holds = False
        for name, count in limited.needs.items():
            self._used[name] -= count
        return self._grant(2 if limited in self._waiting else 1)

    def _available(self) -> Mapping[str, int]:
        """Return the amount of each resource that any instance needs."""
        if self._limits is None:
            return _largest_needs(limited for _, limited in self._members)
        return {
            resource.name: self._limits.get((resource.name, resource.is_global), 0)
            for instance, _ in self._members
            for resource in instance.resources
        }

    def _grant(self, events: int) -> list[RateLimitedInstance]:
        """Grant resources to at most `events` waiting instances, in order of rank."""
        total = self._available()
        granted: list[RateLimitedInstance] = []
        for _ in range(min(events, len(self._waiting))):
            first = min(self._waiting, key=lambda limited: limited.rank)
            needs = first.needs.items()
            if any(self._used.get(name, 0) + count > total.get(name, 0) for name, count in needs):
                break
            for name, count in needs:
                self._used[name] = self._used.get(name, 0) + count
            first.holds = True
            first.grants += 1
            self._waiting.remove(first)
            granted.append(first)
        return granted


def _rate_limited(instance: InstanceConfig) -> RateLimitedInstance:
    needs: dict[str, int] = {}
    for resource in instance.resources:
        needs[resource.name] = max(resource.count, needs.get(resource.name, 0))
    return RateLimitedInstance(instance.priority, needs)


def _largest_needs(instances: Iterable[RateLimitedInstance]) -> dict[str, int]:
    """Return the largest amount of each resource that one instance needs."""
    most: dict[str, int] = {}
    for limited in instances:
        for name, count in limited.needs.items():
            most[name] = max(count, most.get(name, 0))
    return most


class RateLimiter:
    """The rate limiter of a server, shared by all models. Thread-safe."""

    def __init__(self, limits: Limits | None) -> None:
        self._resources = ResourceManager(limits)
        self._lock = threading.Lock()

    def add(self, instances: Iterable[InstanceConfig]) -> list[RateLimitedInstance]:
        """Register a model's instances. Raises ServerError if an instance could never execute."""
        with self._lock:
            return self._resources.add(instances)

    def remove(self, instances: Iterable[RateLimitedInstance]) -> None:
        """Remove the instances of a closed model."""
        with self._lock:
            granted = self._resources.remove(instances)
        _notify(granted)

    def request(self, limited: RateLimitedInstance, granted: Callable[[], None]) -> None:
        """Call `granted` once when this instance may execute.

        The call may happen immediately, or later on the thread of another instance.
        """
        with self._lock:
            limited.granted = granted
            now = self._resources.request(limited)
        _notify(now)

    def release(self, limited: RateLimitedInstance, *, used: bool = True) -> None:
        """Release the resources of a grant. A grant that was not `used` does not count."""
        with self._lock:
            limited.grants -= not used
            granted = self._resources.release(limited)
        _notify(granted)


def _notify(instances: Iterable[RateLimitedInstance]) -> None:
    for limited in instances:
        limited.granted()
