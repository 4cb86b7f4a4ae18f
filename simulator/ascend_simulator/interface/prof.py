"""acl.prof, the dump functions of acl.mdl, and the JSON files that configure profiles and dumps.

Profiling starts and stops per device, and writes the folders that CANN would write:

    {path}/PROF_{number}_{time}_{letters}/host/data/
                                         /device_{id}/data/

The files in the folders have the simulator's own format: one line of JSON per stream task. The
times are not a card's, and CANN's msprof cannot read the files.
"""

from __future__ import annotations

import json
import os
import random
import string
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from ascend_simulator import process
from ascend_simulator.calls import I32, STR, U64, bare, status
from ascend_simulator.codes import Code, Refused
from ascend_simulator.models.dumps import DumpConfig, Dumps
from ascend_simulator.models.loaded import models
from ascend_simulator.resources import Handles
from ascend_simulator.streams.tasks import Span
from ascend_simulator.violations import declare, violate

DUMP_AND_PROFILER = declare(
    "process.dump-and-profiler", "A configuration must not have both dump and profiler."
)

_DEEPEST: Final = 10  # nested objects, and nested arrays


def read_config(path: str, what: str) -> dict[str, Any]:
    """Return the file's JSON object, or an empty object for an empty file.

    Refused: INVALID_FILE, PARSE_FILE.
    """
    try:
        text = Path(path).read_text()
    except OSError as error:
        raise Refused(Code.INVALID_FILE, f"{what}: {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise Refused(Code.PARSE_FILE, f"{what}: {path}: {error}") from error
    try:
        config = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise Refused(Code.PARSE_FILE, f"{what}: {path}: {error}") from error
    if not isinstance(config, dict):
        raise Refused(Code.PARSE_FILE, f"{what}: {path}: not a JSON object")
    for kind in (dict, list):
        if _depth(config, kind) > _DEEPEST:
            raise Refused(
                Code.PARSE_FILE,
                f"{what}: {path}: found more than {_DEEPEST} nested {kind.__name__}s",
            )
    return config


def _depth(config: object, kind: type) -> int:
    if isinstance(config, dict):
        inner = [_depth(item, kind) for item in config.values()]
    elif isinstance(config, list):
        inner = [_depth(item, kind) for item in config]
    else:
        return 0
    return isinstance(config, kind) + max(inner, default=0)


DEAD_CONFIG = declare(
    "prof.dead-config", "A prof configuration must not be used after it is destroyed."
)
CONFIG_RUNNING = declare(
    "prof.config-destroyed-running",
    "A configuration must be stopped with prof.stop() before it is destroyed.",
)
FINALIZED_RUNNING = declare(
    "prof.finalized-running", "Each prof.start() needs a prof.stop() before prof.finalize()."
)
LOADED_BEFORE = declare(
    "prof.model-loaded-before", "A profiled model must be loaded after prof.init()."
)

_METRICS: Final = (*range(7), 0xFF)
"""aclprofAicoreMetrics."""
_AICORE_METRICS: Final = 0x4
_DATA: Final = 0xFFF
"""The bits that data_type_config may have."""


@dataclass(frozen=True, slots=True)
class ProfConfig:
    """The arguments of create_config."""

    devices: tuple[int, ...]
    metrics: int
    data: int


class Profiler:
    """The profiler: a `Part` of the process."""

    def __init__(self) -> None:
        self.of_init = False
        """True if acl.init() was given a profiler."""
        self.path: Path | None = None
        self.configs: Handles[ProfConfig] = Handles("prof config")
        self.running: dict[int, tuple[ProfConfig, Path]] = {}
        """Started configurations and the folders of their files, by handle."""
        self.before: frozenset[int] = frozenset()
        """The models that were loaded before prof.init()."""
        self.spans: list[Span] = []
        self.number = 0

    @property
    def is_running(self) -> bool:
        """True if a configuration is started."""
        return bool(self.running)

    def live(self) -> list[str]:
        """Name the profiler and configurations that were not finalized or destroyed."""
        own = ["profiler"] if self.path is not None else []
        return own + [repr(config) for config in self.configs]

    def close(self) -> None:
        """Do nothing: profiles that were not stopped are not written."""


def device_list(given: object) -> tuple[int, ...]:
    """Convert a list of ints. Raises TypeError for other types."""
    if not isinstance(given, list) or not all(type(each) is int for each in given):
        raise TypeError("argument 1 is not list of int")
    return tuple(given)


@bare("prof.create_config", device_list, I32, U64, U64)
def create_config(devices: Sequence[int], metrics: int, events: int, data: int) -> int:
    """Create a configuration; return null for invalid devices, metrics, events or data."""
    now = process.current()
    known = range(len(now.settings.device_ids))
    if not devices or len({*devices}) < len(devices) or not {*devices} <= {*known}:
        raise _bad("device_list", list(devices), f"devices below {len(known)}, each once")
    if data & _AICORE_METRICS and metrics not in _METRICS:
        raise _bad("aicore_metrics", metrics, "0 to 6, or 255")
    if events:
        raise _bad("aicore_events", events, "0")
    if not data or data & ~_DATA:
        raise _bad("data_type_config", hex(data), f"bits of {_DATA:#x}")
    return now.part(Profiler).configs.add(ProfConfig(tuple(devices), metrics, data))


@status("prof.destroy_config", U64)
def destroy_config(config: int) -> None:
    """Destroy a configuration. Checks DEAD_CONFIG, CONFIG_RUNNING. Refused: INVALID_PARAM."""
    own = process.current().part(Profiler)
    _living(own, config, "destroy_config")
    if config in own.running:
        violate(CONFIG_RUNNING, "destroy_config: still started")
    own.configs.remove(config)


@status("prof.init", STR)
def init(path: str) -> None:
    """Initialise profiling. Folders are written to `path`, which is created if missing.

    Refused: REPEAT_INITIALIZE for a second call, and if acl.init() configured a profiler;
    INVALID_FILE.
    """
    now = process.current()
    own = now.part(Profiler)
    if own.path is not None or own.of_init:
        raise Refused(Code.REPEAT_INITIALIZE, "prof.init: already initialised")
    try:
        if not path:
            raise OSError("no path")
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Refused(Code.INVALID_FILE, f"prof.init: {path!r}: {error}") from error
    if not os.access(path, os.W_OK):
        raise Refused(Code.INVALID_FILE, f"prof.init: {path}: not writable")
    own.path, own.before = Path(path).resolve(), models().numbers()


@status("prof.start", U64)
def start(config: int) -> None:
    """Record all tasks of the process from now on.

    Checks DEAD_CONFIG, DUMP_AND_PROFILER. Refused: INVALID_PARAM, PROF_NOT_RUN without init,
    PROF_ALREADY_RUN for a device that is already profiled.
    """
    now = process.current()
    own = now.part(Profiler)
    found, path = _living(own, config, "start"), _initialised(own, "start")
    taken = {device for other, _ in own.running.values() for device in other.devices}
    if taken & {*found.devices}:
        text = f"prof.start: devices {sorted(taken)} are already being profiled"
        raise Refused(Code.PROF_ALREADY_RUN, text)
    if now.part(Dumps).config is not None:
        violate(DUMP_AND_PROFILER, "prof.start: a dump is configured")
    own.number += 1
    letters = "".join(random.choices(string.ascii_uppercase, k=16))
    stamp = time.strftime("%Y%m%d%H%M%S") + f"{time.time_ns() // 10**6 % 1000:03}"
    folder = path / f"PROF_{own.number:06}_{stamp}_{letters}"
    for part in ("host", *(f"device_{device}" for device in found.devices)):
        (folder / part / "data").mkdir(parents=True)
    if not own.running:
        own.spans.clear()
        now.streams.on_task = own.spans.append
    own.running[config] = found, folder


@status("prof.stop", U64)
def stop(config: int) -> None:
    """Write the recorded tasks to the configuration's folder.

    Checks DEAD_CONFIG, LOADED_BEFORE. Refused: INVALID_PARAM, PROF_NOT_RUN,
    INVALID_PROFILING_CONFIG for a configuration that was not started.
    """
    own = process.current().part(Profiler)
    _living(own, config, "stop")
    _initialised(own, "stop")
    if not own.running:
        raise Refused(Code.PROF_NOT_RUN, "prof.stop: no configuration is started")
    if config not in own.running:
        text = "prof.stop: this configuration was not started"
        raise Refused(Code.INVALID_PROFILING_CONFIG, text)
    _write(own, config)
    executed = {int(span.label.split()[-1]) for span in own.spans if span.kind == "execute"}
    if executed and executed <= own.before:
        violate(
            LOADED_BEFORE,
            f"prof.stop: found executions only of models {sorted(executed)}, all loaded before "
            "prof.init()",
        )


@status("prof.finalize")
def finalize() -> None:
    """End profiling and stop started configurations.

    Checks FINALIZED_RUNNING. Refused: PROF_NOT_RUN.
    """
    own = process.current().part(Profiler)
    _initialised(own, "finalize")
    running = list(own.running)
    for config in running:
        _write(own, config)
    own.path = None
    if running:
        violate(FINALIZED_RUNNING, "prof.finalize: a configuration was started and not stopped")


def _write(own: Profiler, config: int) -> None:
    found, folder = own.running.pop(config)
    if not own.running:
        process.current().streams.on_task = None
    lines = "".join(json.dumps(span._asdict()) + "\n" for span in own.spans)
    for device in found.devices:
        target = folder / f"device_{device}" / "data" / "simulator.task_time.slice_0"
        target.write_text(lines)
    (folder / "host" / "sample.json").write_text(json.dumps(asdict(found)))


def _initialised(own: Profiler, what: str) -> Path:
    if own.path is None:
        raise Refused(Code.PROF_NOT_RUN, f"prof.{what}: found no earlier prof.init()")
    return own.path


def _living(own: Profiler, config: int, what: str) -> ProfConfig:
    if not config:
        raise Refused(Code.INVALID_PARAM, f"prof.{what}: found a null configuration")
    found = own.configs.get(config)
    if found is None:
        text = f"prof.{what}: {config:#x}: not a configuration, or destroyed"
        violate(DEAD_CONFIG, text)
        raise Refused(Code.INVALID_PARAM, text)
    return found


def _bad(name: str, found: object, expected: str) -> Refused:
    text = f"prof.create_config: {name}: found {found}, expected {expected}"
    return Refused(Code.INVALID_PARAM, text)


@status("mdl.init_dump")
def init_dump() -> None:
    """Allow set_dump.

    Refused: REPEAT_INITIALIZE; DUMP_ALREADY_RUN if acl.init() configured a dump.
    """
    dumps = _dumps()
    if dumps.of_init:
        raise Refused(Code.DUMP_ALREADY_RUN, "init_dump: acl.init() has configured a dump")
    if dumps.initialised:
        raise Refused(Code.REPEAT_INITIALIZE, "init_dump: already initialised")
    dumps.initialised = True


@status("mdl.set_dump", STR)
def set_dump(path: str) -> None:
    """Dump models that are loaded from now on. The file replaces an earlier configuration.

    Checks DUMP_AND_PROFILER. Refused: DUMP_NOT_RUN without init_dump, INVALID_FILE, PARSE_FILE,
    INVALID_DUMP_CONFIG.
    """
    dumps = _dumps()
    if not dumps.initialised:
        raise Refused(Code.DUMP_NOT_RUN, "set_dump: found no earlier init_dump")
    config = DumpConfig.read(read_config(path, "set_dump"), f"set_dump: {path}")
    if config is not None and process.current().part(Profiler).is_running:
        violate(DUMP_AND_PROFILER, "set_dump: a profiler is running")
    dumps.config = config


@status("mdl.finalize_dump")
def finalize_dump() -> None:
    """Do not dump models that are loaded from now on. Refused: DUMP_NOT_RUN."""
    dumps = _dumps()
    if not dumps.initialised:
        raise Refused(Code.DUMP_NOT_RUN, "finalize_dump: found no earlier init_dump")
    dumps.initialised, dumps.config = False, None


def _dumps() -> Dumps:
    return process.current().part(Dumps)
