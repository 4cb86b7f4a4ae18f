"""Fixtures that open models in their own processes and wait for the end of these."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from server.backends import kit
from server.backends.process.watching import WatchedHealth, await_threads

from reference_server.backends.process_host.instance import Backoff, ProcessInstance, Supervision
from reference_server.backends.python_host.api.server_access import NO_CALLS
from reference_server.core.ports import ModelCalls, OpenInstance, SystemClock
from reference_server.observability.metric_registry import MetricRegistry


def soon() -> Backoff:
    """Return a backoff with short delays."""
    return Backoff(first_s=0.001, limit_s=0.002)


@pytest.fixture
def health() -> WatchedHealth:
    """The health of a test's instances."""
    return WatchedHealth()


@pytest.fixture
def make(tmp_path: Path, health: WatchedHealth) -> Iterator[Callable[..., ProcessInstance]]:
    """A function that creates an instance of a model's source, not open yet.

    After the test it waits for all threads, whose log lines would disturb the next test.
    """

    def make_one(
        source: str,
        *,
        registry: MetricRegistry | None = None,
        calls: ModelCalls = NO_CALLS,
        restarts: bool = True,
        limit_s: float | None = None,
        backoff: Callable[[], Backoff] = soon,
        prepare: Callable[[OpenInstance], None] | None = None,
        **changes: object,
    ) -> ProcessInstance:
        return ProcessInstance(
            kit.spec(kit.model_file(tmp_path, source), **changes),
            Supervision(restarts, limit_s, backoff),
            SystemClock(),
            registry or MetricRegistry(),
            calls,
            health,
            prepare=prepare,
        )

    yield make_one
    await_threads("m_0_")


@pytest.fixture
def start(make: Callable[..., ProcessInstance]) -> Iterator[Callable[..., ProcessInstance]]:
    """A function that creates and opens an instance, which is closed after the test."""
    opened: list[ProcessInstance] = []

    def start_one(source: str, **settings: object) -> ProcessInstance:
        instance = make(source, **settings)
        instance.open()
        opened.append(instance)
        return instance

    yield start_one
    for instance in opened:
        instance.close()
