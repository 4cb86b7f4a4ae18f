"""Measurement of one load: windows until they are stable, and the server's statistics."""

from __future__ import annotations

import itertools
import random
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from triton_replay.errors import ReplayError, ServerUnreachable
from triton_replay.loading.levels import CONCURRENCY, Level, doubling, evenly, poisson, repeated
from triton_replay.loading.loop import Loop
from triton_replay.loading.queries import Failed, Query, send_query
from triton_replay.loading.statistics import Scraper, Statistics, between, read_statistics
from triton_replay.loading.windows import (
    AGREEING,
    Measurement,
    Stability,
    Streams,
    Times,
    Window,
    percentiles_of,
)
from triton_replay.wire.sockets import CLOSED

_SEED = 0
_NEVER = 2**63 - 1


@dataclass(frozen=True)
class Plan:
    """The measurement of each load.

    Args:
        interval: Duration of a window in nanoseconds, unless `count` or `total` is set.
        count: Requests of a window, or 0.
        total: Requests of the only window, or 0.
        warm_up: Requests before the first window.
        stability: When the windows are stable.
        batch: Rows of a request.
        is_poisson: Whether an open loop has random arrival times.
        gaps: Intervals of `--request-intervals`, in nanoseconds.
        goals: Limits of `--goodput` in nanoseconds: `first`, `last`, `between`.
    """

    interval: int
    count: int
    total: int
    warm_up: int
    stability: Stability
    batch: int
    is_poisson: bool
    gaps: Sequence[int]
    goals: Mapping[str, float] = field(default_factory=dict)


def _times(values: array[int]) -> Times:
    return np.frombuffer(values, np.int64)


@dataclass(eq=False)
class Readings:
    """Readings of the server's statistics. The load continues during a reading."""

    loop: Loop
    queries: Sequence[Query]

    def __post_init__(self) -> None:
        self._found: dict[int, list[Any]] = {}
        self._count = 0
        self._pending = 0

    def start(self) -> int:
        """Start a reading after the previous one is complete; return its number."""
        self.wait()
        self._count += 1
        number = self._count
        self._found[number] = []
        self._pending = len(self.queries)
        for query in self.queries:
            send_query(self.loop, query, lambda found: self._take(number, found))
        return number

    def statistics(self, number: int) -> Statistics:
        """Return the result of a reading; empty for a server without statistics."""
        return read_statistics([one for one in self._found[number] if not isinstance(one, Failed)])

    def wait(self) -> None:
        """Wait until the last reading is complete, at most for the loop's timeout."""
        until = time.perf_counter_ns() + self.loop.timeout
        while self._pending and time.perf_counter_ns() < until:
            self.loop.run(until)

    def _take(self, number: int, found: object) -> None:
        self._found[number].append(found)
        self._pending -= 1
        if not self._pending:
            self.loop.wake()


@dataclass(eq=False)
class Meter:
    """Measures loads, one after the other.

    Args:
        loop: Sends the requests.
        plan: How each load is measured.
        readings: Reads the server's statistics.
        scraper: Reads the metrics page, or None.
        most: Largest number of requests in flight in an open loop.
        progress: Called with the windows of a load after each window.
    """

    loop: Loop
    plan: Plan
    readings: Readings
    scraper: Scraper | None
    most: int
    progress: Callable[[Level, Sequence[Window]], None]

    def capacity(self) -> float:
        """Estimate the server's capacity in requests per second, with short windows.

        Raises:
            ReplayError: No request succeeded.
        """
        best, trying = 0.0, doubling(self.most)
        in_flight = next(trying)
        try:
            while True:
                self.loop.keep(in_flight)
                window = self._window(time.perf_counter_ns(), self.plan.interval // 5)
                self.progress(Level(CONCURRENCY, in_flight), [window])
                self._check_failures(window)
                best = max(best, window.per_second)
                in_flight = trying.send(window.per_second)
        except StopIteration:
            self.loop.drain()
        if not best:
            raise ReplayError(
                f"no response within {self.plan.interval / 5e6:g} ms; "
                "increase --measurement-interval"
            )
        return best

    def measure(self, level: Level) -> Measurement:
        """Measure one load.

        Raises:
            ReplayError: No request succeeded.
            ServerUnreachable: The server does not respond.
        """
        loop, plan = self.loop, self.plan
        late = loop.record.late
        readings = [self.readings.start()]
        self.readings.wait()
        start = time.perf_counter_ns()
        requests = plan.warm_up + plan.total if plan.total else _NEVER
        if level.mode == CONCURRENCY:
            loop.keep(int(level.value), requests)
        else:
            loop.follow(itertools.islice(self._dues(level, start), requests), self.most)
        if plan.warm_up:
            loop.run(_NEVER, len(loop.record.ends) + plan.warm_up)
            readings = [self.readings.start()]
            start = time.perf_counter_ns()
        windows: list[Window] = []
        is_stable = False
        while True:
            window = self._window(start, plan.interval)
            start = window.end
            windows.append(window)
            readings.append(self.readings.start())
            self.progress(level, windows)
            self._check_failures(window)
            is_stable = plan.stability.agree(windows) or bool(plan.total)
            enough = len(windows) >= plan.stability.trials or plan.stability.exceed(windows)
            if is_stable or enough:
                break
        self.readings.wait()
        unsent = loop.stop()
        loop.drain()
        counting = windows[-AGREEING:]
        return self._measurement(
            level, counting, is_stable, readings[-len(counting) - 1], readings[-1], unsent, late
        )

    def _measurement(
        self,
        level: Level,
        windows: Sequence[Window],
        is_stable: bool,
        before: int,
        after: int,
        unsent: int,
        late: int,
    ) -> Measurement:
        record, stability = self.loop.record, self.plan.stability
        first, last = windows[0].first, windows[-1].last
        latencies = np.concatenate([window.latencies for window in windows])
        if not len(latencies):
            raise ReplayError(
                f"no successful request within {len(windows)} windows of "
                f"{self.plan.interval / 1e6:g} ms; increase --measurement-interval"
            )
        succeeded = [index for index in range(first, last) if index not in record.failed]
        arrivals = record.responses and [record.responses[index] for index in succeeded]
        responses = 0
        if record.responses is not None:
            responses = sum(len(record.responses[index]) for index in range(first, last))
        streams = Streams.of([record.starts[index] for index in succeeded], arrivals or ())
        sending = record.sending[first:last]
        mean = [window.latency(stability.percent) for window in windows]
        return Measurement(
            level=level,
            batch=self.plan.batch,
            windows=windows,
            is_stable=is_stable,
            meets_threshold=not stability.threshold or sum(mean) / len(mean) <= stability.threshold,
            percentiles=percentiles_of(latencies, stability.percent),
            sending=float(_times(sending).mean()),
            failures=Counter(
                reason for index, reason in record.failed.items() if first <= index < last
            ),
            responses=responses,
            streams=streams,
            good=streams.good(self.plan.goals, latencies) if self.plan.goals else None,
            unsent=unsent,
            late=record.late - late,
            server=between(self.readings.statistics(before), self.readings.statistics(after)),
            metrics={}
            if self.scraper is None
            else self.scraper.summary(windows[0].start, windows[-1].end),
        )

    def _dues(self, level: Level, start: int) -> Iterator[int]:
        if self.plan.gaps:
            return repeated(self.plan.gaps, start)
        if self.plan.is_poisson:
            return poisson(level.value, start, random.Random(_SEED))
        return evenly(level.value, start)

    def _window(self, start: int, interval: int) -> Window:
        loop, plan = self.loop, self.plan
        record = loop.record
        first = len(record.ends)
        counted = plan.total or plan.count
        if counted:
            self._run(_NEVER, first + counted)
        else:
            self._run(start + interval, _NEVER)
        end, last = time.perf_counter_ns(), len(record.ends)
        # The load pauses during this calculation, so it works on whole arrays.
        latencies = _times(record.ends[first:last]) - _times(record.starts[first:last])
        failed = [index - first for index in record.failed if first <= index < last]
        if failed:
            latencies = np.delete(latencies, failed)
        return Window(start, end, first, last, latencies, len(failed))

    def _run(self, until: int, ends: int) -> None:
        loop, record = self.loop, self.loop.record
        while time.perf_counter_ns() < until and len(record.ends) < ends:
            stop = until if self.scraper is None else min(until, self.scraper.scrape())
            loop.run(stop, ends)

    def _check_failures(self, window: Window) -> None:
        """Raise ReplayError or ServerUnreachable if all requests of a window failed."""
        if window.failures and not len(window.latencies):
            reason = self.loop.record.failed[window.last - 1]
            # A server that exits may accept a connection and then close it.
            kind = ServerUnreachable if reason == CLOSED else ReplayError
            raise kind(f"all {window.failures} requests failed; the last one: {reason}")
