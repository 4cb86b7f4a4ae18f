"""Measuring one load: windows until they agree, and what the server counted meanwhile."""

from __future__ import annotations

import itertools
import random
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from triton_replay.errors import ReplayError, ServerUnreachable
from triton_replay.loading.levels import CONCURRENCY, Level, doubling, evenly, poisson, repeated
from triton_replay.loading.loop import Loop
from triton_replay.loading.questions import Failed, Question, ask
from triton_replay.loading.statistics import Scraper, Statistics, between, read_statistics
from triton_replay.loading.windows import (
    AGREEING,
    Measurement,
    Stability,
    Times,
    Window,
    percentiles_of,
)
from triton_replay.wire.slots import CLOSED

_SEED = 0
_NEVER = 2**63 - 1


@dataclass(frozen=True)
class Plan:
    """How each load is measured.

    interval: nanoseconds of a window; count: requests of a window instead, where it is not 0.
    total: requests of the only window there is, where it is not 0.
    warm_up: requests before the first window.
    gaps: of `--request-intervals`, in nanoseconds.
    """

    interval: int
    count: int
    total: int
    warm_up: int
    stability: Stability
    batch: int
    is_poisson: bool
    gaps: Sequence[int]


def _times(values: array[int]) -> Times:
    return np.frombuffer(values, np.int64)


class Looks:
    """The server's statistics at several moments. The load goes on while they are asked."""

    def __init__(self, loop: Loop, questions: Sequence[Question]) -> None:
        self._loop = loop
        self._questions = questions
        self._came: dict[int, list[Any]] = {}
        self._begun = 0
        self._pending = 0

    def look(self) -> int:
        """Ask, once the look before has been answered; the number of the look."""
        self.wait()
        self._begun += 1
        number = self._begun
        self._came[number] = []
        self._pending = len(self._questions)
        for question in self._questions:
            ask(self._loop, question, lambda found: self._take(number, found))
        return number

    def statistics(self, number: int) -> Statistics:
        """What was told then; nothing from a server without statistics."""
        return read_statistics([one for one in self._came[number] if not isinstance(one, Failed)])

    def wait(self) -> None:
        """Until all answers have come."""
        until = time.perf_counter_ns() + self._loop.silence
        while self._pending and time.perf_counter_ns() < until:
            self._loop.run(until)

    def _take(self, number: int, found: object) -> None:
        self._came[number].append(found)
        self._pending -= 1
        if not self._pending:
            self._loop.wake()


class Meter:
    """Measures loads, one after the other.

    at_once: requests in flight in an open loop, at most.
    told: gets each window when it is over.
    """

    def __init__(
        self,
        loop: Loop,
        plan: Plan,
        looks: Looks,
        scraper: Scraper | None,
        at_once: int,
        told: Callable[[Level, Sequence[Window]], None],
    ) -> None:
        self._loop = loop
        self._plan = plan
        self._looks = looks
        self._scraper = scraper
        self._at_once = at_once
        self._told = told

    def capacity(self) -> float:
        """Requests per second that the server answers at most, by a first look."""
        best, trying = 0.0, doubling(self._at_once)
        in_flight = next(trying)
        try:
            while True:
                self._loop.keep(in_flight)
                window = self._window(time.perf_counter_ns(), self._plan.interval // 5)
                self._told(Level(CONCURRENCY, in_flight), [window])
                self._look_for_failure(window)
                best = max(best, window.per_second)
                in_flight = trying.send(window.per_second)
        except StopIteration:
            self._loop.drain()
        if not best:
            raise ReplayError(
                f"no request was answered within {self._plan.interval / 5e6:g} ms: "
                "give a longer --measurement-interval"
            )
        return best

    def measure(self, level: Level) -> Measurement:
        """Measure one load. Raises ReplayError or ServerUnreachable."""
        loop, plan = self._loop, self._plan
        late = loop.record.late
        looks = [self._looks.look()]
        self._looks.wait()
        start = time.perf_counter_ns()
        requests = plan.warm_up + plan.total if plan.total else _NEVER
        if level.mode == CONCURRENCY:
            loop.keep(int(level.value), requests)
        else:
            loop.follow(itertools.islice(self._dues(level, start), requests), self._at_once)
        if plan.warm_up:
            loop.run(_NEVER, len(loop.record.ends) + plan.warm_up)
            looks = [self._looks.look()]
            start = time.perf_counter_ns()
        windows: list[Window] = []
        is_stable = False
        while True:
            window = self._window(start, plan.interval)
            start = window.end
            windows.append(window)
            looks.append(self._looks.look())
            self._told(level, windows)
            self._look_for_failure(window)
            is_stable = plan.stability.agree(windows) or bool(plan.total)
            enough = len(windows) >= plan.stability.trials or plan.stability.exceed(windows)
            if is_stable or enough:
                break
        self._looks.wait()
        unsent = loop.stop()
        loop.drain()
        counting = windows[-AGREEING:]
        return self._measurement(
            level, counting, is_stable, looks[-len(counting) - 1], looks[-1], unsent, late
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
        record, stability = self._loop.record, self._plan.stability
        first, last = windows[0].first, windows[-1].last
        latencies = np.concatenate([window.latencies for window in windows])
        if not len(latencies):
            raise ReplayError(
                f"no request was answered within {len(windows)} windows of "
                f"{self._plan.interval / 1e6:g} ms: give a longer --measurement-interval"
            )
        responses = 0
        if record.responses is not None:
            responses = sum(len(record.responses[index]) for index in range(first, last))
        sending = record.sending[first:last]
        mean = [window.latency(stability.percent) for window in windows]
        return Measurement(
            level=level,
            batch=self._plan.batch,
            windows=windows,
            is_stable=is_stable,
            meets_threshold=not stability.threshold or sum(mean) / len(mean) <= stability.threshold,
            percentiles=percentiles_of(latencies, stability.percent),
            sending=float(_times(sending).mean()),
            failures=Counter(why for index, why in record.failed.items() if first <= index < last),
            responses=responses,
            unsent=unsent,
            late=record.late - late,
            server=between(self._looks.statistics(before), self._looks.statistics(after)),
            metrics={}
            if self._scraper is None
            else self._scraper.summary(windows[0].start, windows[-1].end),
        )

    def _dues(self, level: Level, start: int) -> Iterator[int]:
        if self._plan.gaps:
            return repeated(self._plan.gaps, start)
        if self._plan.is_poisson:
            return poisson(level.value, start, random.Random(_SEED))
        return evenly(level.value, start)

    def _window(self, start: int, interval: int) -> Window:
        loop, plan = self._loop, self._plan
        record = loop.record
        first = len(record.ends)
        counted = plan.total or plan.count
        if counted:
            self._run(_NEVER, first + counted)
        else:
            self._run(start + interval, _NEVER)
        end, last = time.perf_counter_ns(), len(record.ends)
        # The load goes on as soon as this is done: arrays are subtracted as a whole.
        latencies = _times(record.ends[first:last]) - _times(record.starts[first:last])
        failed = [index - first for index in record.failed if first <= index < last]
        if failed:
            latencies = np.delete(latencies, failed)
        return Window(start, end, first, last, latencies, len(failed))

    def _run(self, until: int, ends: int) -> None:
        loop, record = self._loop, self._loop.record
        while time.perf_counter_ns() < until and len(record.ends) < ends:
            stop = until if self._scraper is None else min(until, self._scraper.scrape())
            loop.run(stop, ends)

    def _look_for_failure(self, window: Window) -> None:
        """Raise ReplayError or ServerUnreachable if no request was answered well, some badly."""
        if window.failures and not len(window.latencies):
            why = self._loop.record.failed[window.last - 1]
            # A server that dies may still take a connection, and closes it.
            kind = ServerUnreachable if why == CLOSED else ReplayError
            raise kind(f"all {window.failures} requests failed, the last one: {why}")
