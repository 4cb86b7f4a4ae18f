"""`ge-runtime bench`: times the executions of a model's artifact at each gear.

On a card, further rounds time the copies to the card, the computation and the copies back. These
rounds wait after each phase. When serving, an execution is queued as a whole.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from ge_runtime.batching.gears import Gear
from ge_runtime.cli.command import Command, add_model, whole
from ge_runtime.cli.config_pbtxt import ensure_model, read_runtime_config
from ge_runtime.cli.inspect import config_for, version_folder
from ge_runtime.config import RuntimeConfig
from ge_runtime.devices import Device
from ge_runtime.engines.artifact import find_artifacts, for_chip
from ge_runtime.engines.backend import DeviceBackend, DeviceSettings, open_backend
from ge_runtime.engines.base import Engine
from ge_runtime.engines.contract import Contract
from ge_runtime.engines.gearing import Footprint, Gearing, with_graph_gears
from ge_runtime.errors import shown
from ge_runtime.memory.plan import aligned_columns
from ge_runtime.npu.driver.card import Cards
from ge_runtime.npu.driver.driver import Address, Copy, Dataset, ModelId, Stream
from ge_runtime.npu.driver.pyacl import PyAclDriver, open_driver
from ge_runtime.npu.engines.ascend_backend import AscendBackend
from ge_runtime.specs import ROWS, Array

_TO_CARD: Final = "H2D_latency"
_COMPUTE: Final = "NPU_compute_time"
_FROM_CARD: Final = "D2H_latency"
_WHOLE: Final = "latency"
"""Total time of an execution that is queued as a whole."""

_WAIT_MS: Final = 60_000
_LOOP, _WARMUP, _SECONDS = 100, 5, 10

_DESCRIPTION: Final = """\
Time the executions of a model's artifact at each gear, without a server. Inputs are zeros in memory
that the device can access, and one execution runs at a time.

`latency` is the total time of an execution, as when serving. On a card, H2D_latency,
NPU_compute_time and D2H_latency are measured in further rounds that wait after each phase, so their
sum is larger than `latency`. These names are those of ais_bench, and so is `throughput`: 1000 *
batchsize / NPU_compute_time.mean. `rows_per_second` is computed from `latency`.
"""

_EPILOG: Final = """\
examples:
  ge-runtime bench model_repository/text_encoder
  ge-runtime bench my_models/ge_classifier --loop 1000 --format json > bench.json

Exit codes: 0 success, 2 invalid arguments or input.
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add = parser.add_argument
    add(
        "--loop",
        type=whole,
        default=_LOOP,
        metavar="N",
        help=f"largest number of timed executions of each gear (default: {_LOOP})",
    )
    add(
        "--warmup-count",
        type=partial(whole, least=0),
        default=_WARMUP,
        metavar="N",
        help=f"executions before the timed executions (default: {_WARMUP})",
    )
    add(
        "--seconds",
        type=whole,
        default=_SECONDS,
        metavar="S",
        help=f"start no execution of a gear after this time (default: {_SECONDS})",
    )
    add("--format", choices=("text", "json"), default="text", help="output format (default: text)")


def _run(given: argparse.Namespace) -> int:
    bounds = Bounds(given.loop, given.warmup_count, given.seconds)
    report = bench(given.folder, given.version, bounds)
    if given.format == "json":
        print(json.dumps(report.as_json(), indent=2))
    else:
        print("\n".join(report.lines()))
    return 0


COMMAND: Final = Command(
    name="bench",
    help="time the executions of a model's artifact at each gear",
    description=_DESCRIPTION,
    epilog=_EPILOG,
    add_arguments=_add_arguments,
    run=_run,
)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits on the executions of a gear."""

    loop: int
    """The largest number of timed executions, at least 1."""
    warmup: int
    """The largest number of executions before the timed executions."""
    seconds: float
    """No execution starts after this time."""

    def rounds(self, most: int, clock: Callable[[], float]) -> Iterator[int]:
        """Yield at most `most` numbers from 0 until the time is up; 0 even without time."""
        end = clock() + self.seconds
        for number in range(most):
            if number and clock() >= end:
                return
            yield number


@dataclass(frozen=True, slots=True)
class GearTimes:
    """The times of the executions of one gear."""

    gear: Gear
    times: Mapping[str, Sequence[float]]
    """The seconds of each execution, by the name of the measurement."""

    def rate(self, name: str) -> float:
        """Return rows per second from the mean of one measurement."""
        return self.gear.rows / float(np.mean(self.times[name]))

    def as_json(self) -> dict[str, object]:
        """Return the times in milliseconds as values for JSON."""
        return {
            "gear": {ROWS: self.gear.rows, **self.gear.extents},
            "batchsize": self.gear.rows,
            "count": len(self.times[_WHOLE]),
            "rows_per_second": self.rate(_WHOLE),
            **({"throughput": self.rate(_COMPUTE)} if _COMPUTE in self.times else {}),
            **{name: summary(seconds) for name, seconds in self.times.items()},
        }


@dataclass(frozen=True, slots=True)
class Report:
    """The times of all gears of one artifact."""

    model: str
    files: str
    device: str
    hardware: str
    gears: Sequence[GearTimes]

    def as_json(self) -> dict[str, object]:
        """Return the report as values for JSON."""
        return {
            "model": self.model,
            "files": self.files,
            "device": self.device,
            "hardware": self.hardware,
            "unit": "ms",
            "gears": [each.as_json() for each in self.gears],
        }

    def lines(self) -> list[str]:
        """Return the report as text."""
        axes = [ROWS, *self.gears[0].gear.extents]
        rows = [[*axes, "ms", *_COLUMNS, "rows/s"]]
        for each in self.gears:
            sizes = [str(size) for size in (each.gear.rows, *each.gear.extents.values())]
            for name, seconds in each.times.items():
                figures = (f"{value:.3f}" for value in summary(seconds).values())
                rate = f"{each.rate(name):,.1f}" if name in (_WHOLE, _COMPUTE) else ""
                rows.append([*sizes, name, *figures, rate])
                sizes = [""] * len(sizes)
        sides = ">" * len(axes) + "<" + ">" * (len(_COLUMNS) + 1)
        title = f"{self.model}: {self.files} on {self.device}, {self.hardware}"
        counts = [len(each.times[_WHOLE]) for each in self.gears]
        least, most = min(counts), max(counts)
        count = f"{most}" if least == most else f"{least} to {most}"
        return [f"{title}, {count} execution(s) of each gear", "", *aligned_columns(rows, sides)]


_COLUMNS: Final = ("min", "max", "mean", "median", "percentile(90%)", "percentile(99%)")


def summary(seconds: Sequence[float]) -> dict[str, float]:
    """Return statistics in milliseconds of at least one time in seconds."""
    ms = np.asarray(seconds) * 1e3
    figures = (ms.min(), ms.max(), ms.mean(), *np.percentile(ms, (50, 90, 99)))
    return dict(zip(_COLUMNS, map(float, figures), strict=True))


class PhaseDriver:
    """A driver that waits for and times each queued copy and execution while `timing` is set.

    All other attributes are those of the wrapped driver.
    """

    def __init__(self, driver: PyAclDriver, clock: Callable[[], float]) -> None:
        self._driver = driver
        self._clock = clock
        self.timing = False
        self.seconds: dict[str, float] = defaultdict(float)
        """Sum of seconds for each phase since the dict was cleared."""

    def __getattr__(self, name: str) -> object:
        return getattr(self._driver, name)

    def copy_async(
        self, target: Address, room: int, source: Address, nbytes: int, kind: Copy, stream: Stream
    ) -> None:
        with self._timed(_TO_CARD if kind is Copy.TO_DEVICE else _FROM_CARD, stream):
            self._driver.copy_async(target, room, source, nbytes, kind, stream)

    def execute_async(
        self, model: ModelId, inputs: Dataset, outputs: Dataset, stream: Stream
    ) -> None:
        with self._timed(_COMPUTE, stream):
            self._driver.execute_async(model, inputs, outputs, stream)

    @contextmanager
    def _timed(self, name: str, stream: Stream) -> Iterator[None]:
        begin = self._clock()
        yield
        if self.timing:
            self._driver.synchronize_stream(stream, _WAIT_MS)
            self.seconds[name] += self._clock() - begin


def bench(
    folder: Path, version: int | None, bounds: Bounds, clock: Callable[[], float] = perf_counter
) -> Report:
    """Time a version of the model in `folder`, by default the highest.

    Raises RuntimeFault if the model or its device cannot be used.
    """
    ensure_model(folder)
    version_dir = version_folder(folder, version)
    config = read_runtime_config(folder)
    artifacts = find_artifacts(
        version_dir, config.engine, config.stages, device_kind=config.device_kind
    )
    with ExitStack() as opened:
        backend, phases = _open(config, artifacts[0].engine, clock)
        opened.callback(backend.close)
        artifacts = for_chip(artifacts, backend.hardware)
        engine = backend.open(artifacts, threads=config.intra_op_threads, outputs=config.results)
        opened.callback(engine.close)
        config = config_for(folder, config, engine.signature)
        config = with_graph_gears(config, engine, artifacts)
        footprint = Footprint.of(config, Contract.between(config, engine.signature))
        gears = list(Gearing.of(config, version_dir).gears.every())
        shapes = [footprint.shapes(gear) for gear in gears]
        engine.bind(shapes, backend.memory)
        times = [
            GearTimes(gear, _times(engine, backend.memory, each, phases, bounds, clock))
            for gear, each in zip(gears, shapes, strict=True)
        ]
        hardware = backend.hardware
    files = shown(*(artifact.path for artifact in artifacts))
    return Report(config.model, files, config.devices[0], hardware, times)


def _open(
    config: RuntimeConfig, engine: str, clock: Callable[[], float]
) -> tuple[DeviceBackend, PhaseDriver | None]:
    """Open the device, with a driver that times phases if the engine queues phases."""
    if engine != "om" or config.unplanned_memory:  # executions with free shapes have no phases
        settings = DeviceSettings.of(config)
        return open_backend(config.devices[0], settings, engine=engine), None
    phases = PhaseDriver(open_driver(), clock)
    # New cards, because the process's cards keep the driver that they were opened with.
    cards = Cards(lambda: cast(PyAclDriver, phases))
    number = int(config.devices[0].partition(":")[2])
    return AscendBackend(
        number, workspace_bytes=config.workspace_pool_bytes, limits=config.time_limits, cards=cards
    ), phases


def _times(
    engine: Engine,
    memory: Device[NDArray[np.uint8]],
    shapes: Mapping[str, tuple[int, ...]],
    phases: PhaseDriver | None,
    bounds: Bounds,
    clock: Callable[[], float],
) -> dict[str, list[float]]:
    """Time executions with these input shapes; return the seconds of each, by measurement."""
    with ExitStack() as buffers:

        def allocate(name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
            nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
            buffer = memory.allocate(name, nbytes)
            buffers.callback(buffer.free)
            buffer.memory[:nbytes] = 0
            return buffer.memory[:nbytes].view(dtype).reshape(shape)

        inputs = {
            tensor.name: allocate(tensor.name, shapes[tensor.name], tensor.dtype.numpy)
            for tensor in engine.signature.inputs
        }
        names = [tensor.name for tensor in engine.signature.outputs]
        first = engine.run(inputs, dict.fromkeys(names))  # for the shapes of the outputs
        outputs = {name: allocate(name, each.shape, each.dtype) for name, each in first.items()}
        del first
        for _ in bounds.rounds(bounds.warmup, clock):
            engine.run(inputs, outputs)
        times: dict[str, list[float]] = {_WHOLE: []}
        for _ in bounds.rounds(bounds.loop, clock):
            begin = clock()
            engine.run(inputs, outputs)
            times[_WHOLE].append(clock() - begin)
        if phases is not None:
            phases.timing = True
            for _ in bounds.rounds(bounds.loop, clock):
                phases.seconds.clear()
                engine.run(inputs, outputs)
                for name in (_TO_CARD, _COMPUTE, _FROM_CARD):
                    times.setdefault(name, []).append(phases.seconds[name])
            phases.timing = False
        # Release the views before their memory.
        inputs.clear()
        outputs.clear()
    return times
