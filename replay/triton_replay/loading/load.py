"""A run of `triton-replay load`: model, requests, loop and measurement."""

from __future__ import annotations

import contextlib
import gc
import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from triton_replay.addresses import Address
from triton_replay.errors import ReplayError
from triton_replay.loading.http_server import HttpServer
from triton_replay.loading.input_data import InputOptions, read_streams
from triton_replay.loading.levels import (
    CONCURRENCY,
    RATE,
    Level,
    Levels,
    Range,
    Running,
    SequencePlan,
    Sequences,
    shares_of,
)
from triton_replay.loading.loop import Loop, NextRequest, Record
from triton_replay.loading.measuring import Meter, Plan, Readings
from triton_replay.loading.queries import InSequence, Regions, Server, describe
from triton_replay.loading.statistics import Scraper, of_one_request
from triton_replay.loading.tensors import Model, Region, RequestData, batches, model_of
from triton_replay.loading.windows import Measurement, Window
from triton_replay.wire.sockets import Slot

IN_FLIGHT: Final = 512
"""Largest number of requests in flight in an open loop without sequences."""
_SEED: Final = 0


@dataclass(frozen=True)
class LoadOptions:
    """Options of a run.

    Args:
        model: Name of the model.
        version: Version of the model; "" for the newest.
        server: Connects to the server.
        parameters: Parameters of every request.
        inputs: Values of the inputs.
        plan: How each load is measured.
        search: Range of loads; None for loads by `plan.gaps` or by the server's capacity.
        is_binary_search: Whether the range is searched by bisection.
        sequences: Concurrent sequences of an open loop.
        sequence_length: Mean length of a sequence; None for the length of its data.
        sequence_variation: Largest deviation from this length, as a share of it.
        sequence_ids: First id, and the exclusive end of the range or None.
        output_size: Bytes of an output row in shared memory; None without shared memory.
        metrics: Address and path of the metrics page, and nanoseconds between two readings.
        composing: Names and versions of further models whose statistics are reported.
        timeout: Seconds without any response after which the server counts as unreachable.
        streaming: Whether requests may have several responses.
        responses: Whether the time of each response is recorded, for the export.
    """

    model: str
    version: str
    server: Callable[[], Server]
    parameters: Mapping[str, Any]
    inputs: InputOptions
    plan: Plan
    search: Range | None
    is_binary_search: bool
    sequences: int
    sequence_length: int | None
    sequence_variation: float
    sequence_ids: tuple[int, int | None]
    output_size: int | None
    metrics: tuple[Address, str, int] | None
    composing: tuple[tuple[str, str], ...]
    timeout: float
    streaming: bool
    responses: bool


@dataclass
class LoadReport:
    """The results of a run so far.

    Args:
        server: Address of the server.
        began: Start time in ISO 8601.
        percent: Percentile for stability; None for the mean.
        collects_metrics: Whether the metrics page is read.
    """

    server: str
    began: str
    percent: int | None
    collects_metrics: bool
    model: Model | None = None
    measurements: list[Measurement] = field(default_factory=list)
    record: Record | None = None
    scraper: Scraper | None = None

    def parts_of(self, one: Measurement) -> dict[str, float] | None:
        """Return the parts of a request's time at the server in us, or None if unknown."""
        assert self.model is not None
        composing = [name for name, _ in self.model.steps]
        return of_one_request(self.model.name, one.server, composing)


@dataclass(eq=False)
class Load:
    """One run. If `run` raises, `report` has the results so far.

    Args:
        options: Options of the run.
        report: Receives the results.
        progress: Called with the windows of a load after each window.
        found: Called with each measurement.
    """

    options: LoadOptions
    report: LoadReport
    progress: Callable[[Level, Sequence[Window]], None]
    found: Callable[[Measurement], None]

    def __post_init__(self) -> None:
        self._server = self.options.server()
        self._next: NextRequest = _not_ready
        self._sequences: Sequences | None = None

    def run(self) -> None:
        """Measure all loads.

        Raises:
            ReplayError: The options do not fit the model, or no request succeeded.
            ServerUnreachable: The server does not respond.
        """
        options = self.options
        with contextlib.ExitStack() as stack:
            loop = Loop(
                self._server.connect,
                lambda slot: self._next(slot),
                self._prepare,
                timeout=options.timeout,
            )
            stack.callback(loop.close)
            described = describe(loop, self._server, options.model, options.version)
            model = model_of(options.model, options.version, *described)
            self.report.model, self.report.record = model, loop.record
            if model.is_decoupled and not options.streaming:
                text = f"-m {model.name}: a decoupled model; expected -i grpc --streaming"
                raise ReplayError(text)
            if options.responses or model.is_decoupled:
                loop.record.responses = []
            made = stack.enter_context(contextlib.closing(Regions(loop, self._server)))
            self._make_requests(model, made)
            # Pauses of the garbage collector would count as latency. The load creates no cycles.
            gc.disable()
            stack.callback(gc.enable)
            self._measure(loop, model)

    def _measure(self, loop: Loop, model: Model) -> None:
        options = self.options
        models = [(model.name, model.version), *model.steps, *options.composing]
        queries = [self._server.statistics(loop, *one) for one in dict.fromkeys(models)]
        readings = Readings(loop, queries)
        scraper = None
        if options.metrics is not None:
            address, page, interval = options.metrics
            server = HttpServer(address, (), option="--metrics-url")
            scraper = Scraper(loop, server.text(loop, page), interval)
            self.report.scraper = scraper
        most = options.sequences if model.is_sequence else IN_FLIGHT
        meter = Meter(loop, options.plan, readings, scraper, most, self.progress)
        levels = self._levels(meter)
        try:
            level = next(levels)
            while True:
                one = meter.measure(level)
                self.report.measurements.append(one)
                self.found(one)
                level = levels.send(one.meets_threshold)
        except StopIteration:
            return

    def _levels(self, meter: Meter) -> Levels:
        options = self.options
        if options.search is not None:
            search = options.search
            return search.binary() if options.is_binary_search else search.linear()
        if options.plan.gaps:
            gaps = options.plan.gaps
            return _once(Level(RATE, round(len(gaps) / (sum(gaps) / 1e9))))
        return shares_of(meter.capacity())

    def _make_requests(self, model: Model, made: Regions) -> None:
        options = self.options
        batch = options.plan.batch
        streams = batches(model, read_streams(model, options.inputs), batch)
        outputs: Mapping[str, Region] = {}
        if options.output_size is not None:
            streams = [[made.inputs(one) for one in stream] for stream in streams]
            outputs = made.outputs(model, batch, options.output_size)
        requests = self._server.requests(model, options.parameters, outputs)
        whole = [one for stream in streams for one in stream]
        if not model.is_sequence:
            turns = itertools.cycle([requests.whole(one) for one in whole])
            self._next = lambda _: next(turns)
            return
        self._sequences = Sequences(self._sequence_plan(streams), random.Random(_SEED))
        makers = [requests.in_sequence(one) for one in whole]
        self._next = lambda slot: _of_sequence(slot, makers)

    def _sequence_plan(self, streams: Sequence[Sequence[RequestData]]) -> SequencePlan:
        options = self.options
        numbers = itertools.count()
        plan = SequencePlan(
            [[next(numbers) for _ in stream] for stream in streams],
            options.sequence_length,
            options.sequence_variation,
            *options.sequence_ids,
        )
        search, at_once = options.search, options.sequences
        if search is not None and search.mode == CONCURRENCY:
            at_once = int(max(search.start, search.end))
        plan.check(at_once)
        return plan

    def _prepare(self, slot: Slot) -> None:
        if self._sequences is not None:
            slot.sequence = Running(self._sequences)


def _of_sequence(slot: Slot, makers: Sequence[InSequence]) -> bytes:
    assert slot.sequence is not None
    index, sequence, start, end = slot.sequence.step()
    return makers[index](sequence, start, end)


def _not_ready(slot: Slot) -> bytes:
    raise ReplayError("the load has no requests yet")


def _once(level: Level) -> Levels:
    yield level
