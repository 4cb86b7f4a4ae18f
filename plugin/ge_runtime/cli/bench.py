"""`ge-runtime bench`: how long the executions of a model's artifact take, gear by gear.

On a card the copies to it, the computing and the copies back are timed apart as well, in rounds of
their own: there each is waited for by itself, while executions that serve are queued as a whole.
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
from ge_runtime.engines.gearing import Footprint, Gearing, with_compiled_gears, with_fixed_batch
from ge_runtime.errors import shown
from ge_runtime.memory.plan import aligned_columns
from ge_runtime.npu.driver.card import Cards
from ge_runtime.npu.driver.driver import Address, Copy, Dataset, Driver, ModelId, Stream
from ge_runtime.npu.driver.pyacl import open_driver
from ge_runtime.npu.engines.ascend_backend import AscendBackend
from ge_runtime.specs import ROWS, Array

_TO_CARD: Final = "H2D_latency"
_COMPUTE: Final = "NPU_compute_time"
_FROM_CARD: Final = "D2H_latency"
_WHOLE: Final = "latency"
"""Of an execution as it serves: all that it takes."""

_WAIT_MS: Final = 60_000
_LOOP, _WARMUP, _SECONDS = 100, 5, 10

_DESCRIPTION: Final = """\
Time the executions of a model's artifact at each of its gears, without a server: of inputs that are
all 0, one execution at a time, from and to memory that the device can reach.

`latency` is an execution as it serves. On a card H2D_latency, NPU_compute_time and D2H_latency are
timed in further rounds, each waited for by itself, so that together they are more than `latency`.
The words are those of ais_bench, as is `throughput`, 1000 * batchsize / NPU_compute_time.mean;
`rows_per_second` is what `latency` leaves of it.
"""

_EPILOG: Final = """\
examples:
  ge-runtime bench model_repository/text_encoder
  ge-runtime bench my_models/ge_classifier --loop 1000 --format json > bench.json

Exit codes: 0 done, 2 arguments or input that cannot be used.
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add = parser.add_argument
    add(
        "--loop",
        type=whole,
        default=_LOOP,
        metavar="N",
        help=f"executions of each gear that are timed, at most ({_LOOP})",
    )
    add(
        "--warmup-count",
        type=partial(whole, least=0),
        default=_WARMUP,
        metavar="N",
        help=f"executions before them that are not ({_WARMUP})",
    )
    add(
        "--seconds",
        type=whole,
        default=_SECONDS,
        metavar="S",
        help=f"no further execution of a gear is begun after them ({_SECONDS})",
    )
    add("--format", choices=("text", "json"), default="text", help="of what is printed (text)")


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
    help="time the executions of a model's artifact, gear by gear",
    description=_DESCRIPTION,
    epilog=_EPILOG,
    add_arguments=_add_arguments,
    run=_run,
)


@dataclass(frozen=True, slots=True)
class Bounds:
    """How often a gear is executed."""

    loop: int
    """The most executions that are timed, at least 1."""
    warmup: int
    """The most executions before them."""
    seconds: float
    """After which no further one is begun."""

    def rounds(self, most: int, clock: Callable[[], float]) -> Iterator[int]:
        """Numbers from 0 on, below `most` and as long as there is time; the first in any case."""
        end = clock() + self.seconds
        for number in range(most):
            if number and clock() >= end:
                return
            yield number


@dataclass(frozen=True, slots=True)
class GearTimes:
    """What executions of one gear took."""

    gear: Gear
    times: Mapping[str, Sequence[float]]
    """What was timed: seconds of each execution."""

    def rate(self, name: str) -> float:
        """Rows per second, one execution after another, if `name` were all that they take."""
        return self.gear.rows / float(np.mean(self.times[name]))

    def as_json(self) -> dict[str, object]:
        """Times in milliseconds."""
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
    """All gears of one artifact."""

    model: str
    files: str
    device: str
    hardware: str
    gears: Sequence[GearTimes]

    def as_json(self) -> dict[str, object]:
        """For programs."""
        return {
            "model": self.model,
            "files": self.files,
            "device": self.device,
            "hardware": self.hardware,
            "unit": "ms",
            "gears": [each.as_json() for each in self.gears],
        }

    def lines(self) -> list[str]:
        """For people."""
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
        told = f"{most}" if least == most else f"{least} to {most}"
        return [
            f"{title}, {told} execution(s) of each gear",
            "",
            *aligned_columns(rows, sides),
        ]


_COLUMNS: Final = ("min", "max", "mean", "median", "percentile(90%)", "percentile(99%)")


def summary(seconds: Sequence[float]) -> dict[str, float]:
    """Of times in seconds: milliseconds. At least one."""
    ms = np.asarray(seconds) * 1e3
    figures = (ms.min(), ms.max(), ms.mean(), *np.percentile(ms, (50, 90, 99)))
    return dict(zip(_COLUMNS, map(float, figures), strict=True))


class PhaseDriver:
    """A driver of cards whose queued copies and executions are timed, while `apart` is set.

    All else is the driver's below.
    """

    def __init__(self, driver: Driver, clock: Callable[[], float]) -> None:
        self._driver = driver
        self._clock = clock
        self.apart = False
        self.seconds: dict[str, float] = defaultdict(float)
        """Of what was timed since it was cleared."""

    def __getattr__(self, name: str) -> object:
        return getattr(self._driver, name)

    def copy_async(
        self,
        target: Address,
        room: int,
        source: Address,
        nbytes: int,
        kind: Copy,
        stream: Stream,
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
        if self.apart:
            self._driver.synchronize_stream(stream, _WAIT_MS)
            self.seconds[name] += self._clock() - begin


def bench(
    folder: Path,
    version: int | None,
    bounds: Bounds,
    clock: Callable[[], float] = perf_counter,
) -> Report:
    """Time the model in `folder`; its highest version, if `version` is None.

    clock: in seconds. Raises RuntimeFault or OSError.
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
        files = shown(*(artifact.path for artifact in artifacts))
        config = config_for(folder, config, engine.signature)
        if engine.shapes is not None:
            config = with_compiled_gears(config, engine.shapes, files)
        else:
            config = with_fixed_batch(config, engine.signature)
        footprint = Footprint.of(config, Contract.between(config, engine.signature))
        gears = list(Gearing.of(config, version_dir).gears.every())
        shapes = [footprint.shapes(gear) for gear in gears]
        engine.bind(shapes, backend.memory)
        times = [
            GearTimes(gear, _times(engine, backend.memory, each, phases, bounds, clock))
            for gear, each in zip(gears, shapes, strict=True)
        ]
        hardware = backend.hardware
    return Report(config.model, files, config.devices[0], hardware, times)


def _open(
    config: RuntimeConfig, engine: str, clock: Callable[[], float]
) -> tuple[DeviceBackend, PhaseDriver | None]:
    """The device, and what tells its phases apart where that can be."""
    if engine != "om" or config.unplanned_memory:  # free shapes: nothing is queued that has phases
        settings = DeviceSettings.of(config)
        return open_backend(config.devices[0], settings, engine=engine), None
    phases = PhaseDriver(open_driver(), clock)
    # Cards of our own: the process's would keep the driver that it began with.
    cards = Cards(lambda: cast(Driver, phases))
    number = int(config.devices[0].partition(":")[2])
    return AscendBackend(number, workspace_bytes=config.workspace_pool_bytes, cards=cards), phases


def _times(
    engine: Engine,
    memory: Device[NDArray[np.uint8]],
    shapes: Mapping[str, tuple[int, ...]],
    phases: PhaseDriver | None,
    bounds: Bounds,
    clock: Callable[[], float],
) -> dict[str, list[float]]:
    """What was timed at these shapes of the graph's inputs: seconds of each execution."""
    with ExitStack() as held:

        def room(name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
            nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
            buffer = memory.allocate(name, nbytes)
            held.callback(buffer.free)
            buffer.memory[:nbytes] = 0
            return buffer.memory[:nbytes].view(dtype).reshape(shape)

        inputs = {
            tensor.name: room(tensor.name, shapes[tensor.name], tensor.dtype.numpy)
            for tensor in engine.signature.inputs
        }
        wanted = [tensor.name for tensor in engine.signature.outputs]
        first = engine.run(inputs, dict.fromkeys(wanted))  # tells the results' shapes
        outputs = {name: room(name, each.shape, each.dtype) for name, each in first.items()}
        del first
        for _ in bounds.rounds(bounds.warmup, clock):
            engine.run(inputs, outputs)
        times: dict[str, list[float]] = {_WHOLE: []}
        for _ in bounds.rounds(bounds.loop, clock):
            begin = clock()
            engine.run(inputs, outputs)
            times[_WHOLE].append(clock() - begin)
        if phases is not None:
            phases.apart = True
            for _ in bounds.rounds(bounds.loop, clock):
                phases.seconds.clear()
                engine.run(inputs, outputs)
                for name in (_TO_CARD, _COMPUTE, _FROM_CARD):
                    times.setdefault(name, []).append(phases.seconds[name])
            phases.apart = False
        # Views go before the memory that they are of.
        inputs.clear()
        outputs.clear()
    return times
