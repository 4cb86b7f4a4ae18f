"""Parameters of the whole model: engine, devices, threads, stages, costs, and the device service.

- `engine`: `auto` (default), `onnxruntime`, `torch`, `om`, `ge_session`, or one that another
  package registers.
- `intra_op_threads`: threads that one execution may use. Default: the cores of the process shared
  by all instances and their devices, at least 1.
- `devices`: one engine and one executor each, e.g. `cpu, cpu` or `cuda:0, cuda:1`. Default `cpu`.
- `io_buffers`: on a card, batches that an executor has room for, 1 by default. With 2 the copies of
  one are made while another computes; weights and workspace stay as they are.
- `stages`: the names of the graphs in the version folder, in the order in which they run, e.g.
  `encoder, classifier` for encoder.onnx and classifier.onnx. Default: the one artifact.
- `cost`: `calibrate` (default: timed at load), or what an execution costs: `launch_us=120,
  element_ns=35.2, element2_ns=0.01`, all three, for an execution, for an element of a row and for
  a squared element of a row; and `growth_ns=2`, if rows grow dearer with their number, for an
  element of a row and root of the rows.
- `cost_cache`: where what was timed is kept for the next start: `auto` (default: the user's cache
  folder), `off`, or a folder, which is inside the version folder if it is relative.
- `oversize`: what becomes of a request that no gear holds: `error` (default) refuses it,
  `fallback` executes it alone at its own size.
- `histogram`: where the sizes of requests are recorded, a path inside the version folder.
- `warmup`: `gears` (default: each is executed once at load) or `none`.
- `early_answers`: `true` (default): answers leave with their execution, and executions of few
  seconds go first; `false`: all answers of a request batch leave with its last execution.
- `load_check`: `on` (default: a load ends with seeded requests that must get the same answers
  alone, padded and in any company) or `off`.
- `workspace_pool_mib`: the capacity of the device's pool of workspace, in MiB; on a card of each
  executor, on a GPU of each engine.
- `unplanned_memory`: `refused` (default), or `allowed`: a model.om that ATC compiled for ranges of
  sizes (`--input_shape=x:1~32,-1`, no gears) is executed, though its memory is in no plan.
- `rows`: for `max_batch_size: 0` where the model's own code prepares the graph's inputs: the most
  rows of a batch. Prepared tensors then have a batch dimension, of as many rows as the code makes
  of a request, and so have the graph's inputs and outputs; config.pbtxt writes it as the first
  dim of every output, -1.
- `placement`: `local` (default) executes in the model's own process, `service` in the process that
  owns the device: weights are there once for all models of equal files, and models take turns.
- `service_weight`: with `placement: service`, the share of the device that this model's process
  gets while others want it, too: 2 is twice as much as 1, the default.
- `service_priority`: with `placement: service`, executions of higher priority go before those that
  wait; a whole number, 0 by default.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final, NamedTuple

from ge_runtime import components
from ge_runtime.config.npu_ge import NPU, executes_om, read_device_ids
from ge_runtime.config.triton_config import (
    ConfigErrors,
    Parameters,
    read_whole,
    split_names,
    split_pairs,
)

DEVICES: Final = ("cpu", "cuda:0", "npu:0")
"""For people: of GPUs and cards there are others, such as npu:1."""


_ACCELERATOR: Final = re.compile(r"(cuda|npu):\d+", re.ASCII)
_EXAMPLES: Final = {"cpu": "cpu", "cuda": "GPUs, e.g. cuda:0", NPU: "cards, e.g. npu:0"}
"""Kind of device: how a text names some of it."""

_STAGE_NAME: Final = re.compile(r"\w[\w.-]*", re.ASCII)
_COSTS: Final = {"launch_us": 1e-6, "element_ns": 1e-9, "element2_ns": 1e-9}
"""Part of a cost: its unit in seconds."""
_GROWTH: Final = {"growth_ns": 1e-9}
"""The same of the part that may be left out."""


class EnginePlace(NamedTuple):
    """Where one of a model's engines executes."""

    device: str
    executor: int
    """Of the model's on that device, from 0."""
    buffers: int
    """Which of the executor's buffer sets."""


class GivenCost(NamedTuple):
    """What config.pbtxt says of the cost of executions, in seconds."""

    launch_s: float
    element_s: float
    element2_s: float
    growth_s: float = 0.0


def read_engine(parameters: Parameters, devices: Sequence[str], errors: ConfigErrors) -> str:
    """The name of an engine that the devices can execute, or "auto"."""
    engine = parameters.settings.get("engine", "auto")
    entries = [entry for entry in components.engine_entries() if entry.name == engine]
    if engine != "auto" and not entries:
        known = ("auto", *components.engine_names())
        errors.add_unknown("parameter 'engine'", "engine", engine, known)
    elif engine != "auto" and {entry.device_kind for entry in entries}.isdisjoint(
        map(kind_of, devices)
    ):
        found = f"engine {engine} for devices {', '.join(devices)}"
        needed = ", or ".join(_EXAMPLES[entry.device_kind] for entry in entries)
        errors.add("parameter 'engine'", found, f"devices: {needed}")
    return engine


def read_devices(parameters: Parameters, errors: ConfigErrors) -> tuple[str, ...]:
    """At least one, all of one kind; a device may be there several times."""
    devices = read_device_ids(parameters, errors)
    if devices is None:
        devices = split_names(parameters.settings.get("devices", "cpu"))
    for device in dict.fromkeys(devices):
        if device not in DEVICES and not _ACCELERATOR.fullmatch(device):
            errors.add_unknown("parameter 'devices'", "device", device, DEVICES)
    kinds = sorted({kind_of(device) for device in devices})
    # Of kinds that are known: an unknown one has its error.
    if len(kinds) > 1 and all(kind in components.DEVICES for kind in kinds):
        errors.add("parameter 'devices'", " and ".join(kinds), "devices of one kind")
    return devices


def kind_of(device: str) -> str:
    """The kind of a device that config.pbtxt names: "npu" of "npu:0"."""
    return device.partition(":")[0]


def read_io_buffers(
    parameters: Parameters, devices: Sequence[str], errors: ConfigErrors, *, engine: str
) -> int:
    """How many buffer sets each executor has; more than one only for .om files in this process."""
    field, text = "parameter 'io_buffers'", parameters.settings.get("io_buffers", "1")
    count = read_whole(field, text, errors, least=1)
    if count > _MOST_BUFFERS:
        errors.add(field, f"'{text}'", f"at most {_MOST_BUFFERS}: 2 hide all copies but the first")
    elif count > 1:
        if not executes_om(devices, engine):
            found = f"{count} for engine {engine} on {', '.join(devices)}"
            errors.add(field, found, "1, or .om files on a card: devices: npu:0")
        if parameters.settings.get("placement") == "service":
            errors.add(field, f"{count}", "1 with placement: service, whose buffers are its own")
    return count


def read_unplanned(
    parameters: Parameters, devices: Sequence[str], errors: ConfigErrors, *, engine: str
) -> bool:
    """Whether a file of free shapes may be executed, outside of all plans."""
    choice = read_choice("unplanned_memory", ("refused", "allowed"), parameters, errors)
    if choice != "allowed":
        return False
    field = "parameter 'unplanned_memory'"
    if not executes_om(devices, engine):
        found = f"'allowed' for engine {engine} on {', '.join(devices)}"
        errors.add(field, found, "'refused', or an .om file on a card: devices: npu:0")
    if parameters.settings.get("placement") == "service":
        expected = "'refused' with placement: service, which plans the memory of all models"
        errors.add(field, "'allowed'", expected)
    return True


def read_threads(parameters: Parameters, errors: ConfigErrors, *, share: int) -> int:
    """The threads of one execution; share: how many cores each engine has for itself."""
    text = parameters.settings.get("intra_op_threads", str(max(1, share)))
    return read_whole("parameter 'intra_op_threads'", text, errors, least=1)


def read_rows(parameters: Parameters, max_batch_size: int, errors: ConfigErrors) -> int:
    """The most rows of a batch; 0 if the graph has no batch dimension."""
    field, text = "parameter 'rows'", parameters.settings.get("rows")
    if text is None:
        return max_batch_size
    if max_batch_size:
        found = f"max_batch_size {max_batch_size}"
        errors.add(field, found, "0: otherwise that says how many rows a batch has")
    if not parameters.families["prepared"]:
        expected = "at least one: only the model's own code can make rows of such requests"
        errors.add(field, "no 'prepared.<tensor>'", expected)
    return read_whole(field, text, errors, least=1)


def read_stages(parameters: Parameters, errors: ConfigErrors) -> tuple[str, ...]:
    """The names of the graphs in order; empty if the model is one artifact."""
    text = parameters.settings.get("stages")
    if text is None:
        return ()
    stages = split_names(text)
    if len(set(stages)) < len(stages) or not all(map(_STAGE_NAME.fullmatch, stages)):
        expected = "the names of files without their endings, each once, e.g. encoder, classifier"
        errors.add("parameter 'stages'", f"'{text}'", expected)
    return stages


def read_cost(parameters: Parameters, errors: ConfigErrors) -> GivenCost | None:
    """What an execution costs; None: to be timed."""
    text = parameters.settings.get("cost", "calibrate")
    if text == "calibrate":
        return None
    units = _COSTS | _GROWTH
    given = split_pairs(text)
    names = {name for name, _ in given}
    if len(names) == len(given) and _COSTS.keys() <= names <= units.keys():
        costs = {name: _seconds(number, units[name]) for name, number in given}
        # What is no number is nan, which fails every comparison.
        if all(0 <= cost < math.inf for cost in costs.values()):
            return GivenCost(*(costs.get(name, 0.0) for name in units))
    expected = "'calibrate', or numbers of at least 0 as in 'launch_us=120, element_ns=35.2, "
    errors.add("parameter 'cost'", f"'{text}'", expected + "element2_ns=0.01'")
    return None


def _seconds(number: str, unit: float) -> float:
    """The number times its unit; not a number (nan) if it is none."""
    try:
        return float(number) * unit
    except ValueError:
        return math.nan


def read_choice(
    name: str, choices: tuple[str, str], parameters: Parameters, errors: ConfigErrors
) -> str:
    """The parameter `name`: one of two choices, the first if it is not there."""
    choice = parameters.settings.get(name, choices[0])
    if choice not in choices:
        errors.add(f"parameter '{name}'", f"'{choice}'", f"'{choices[0]}' or '{choices[1]}'")
    return choice


def read_histogram(parameters: Parameters, errors: ConfigErrors) -> str | None:
    """A path relative to the version folder, and inside it; None if there is none."""
    text = parameters.settings.get("histogram")
    if text is None:
        return None
    path = PurePosixPath(text)
    if path.is_absolute() or ".." in path.parts or not path.name:
        expected = "a path inside the version folder, e.g. histogram.json"
        errors.add("parameter 'histogram'", f"'{text}'", expected)
    return str(path)


def read_cost_cache(parameters: Parameters, errors: ConfigErrors) -> str:
    """Where costs are kept: "auto", "off", or a folder, inside the version folder if relative."""
    text = parameters.settings.get("cost_cache", "auto")
    path = PurePosixPath(text)
    if not path.name or ".." in path.parts:
        expected = "auto, off, a folder, or one inside the version folder, e.g. costs"
        errors.add("parameter 'cost_cache'", f"'{text}'", expected)
    return text


def read_pool_bytes(parameters: Parameters, errors: ConfigErrors, *, engine: str) -> int | None:
    """The capacity of the workspace pool in bytes; None if there is none."""
    field, text = "parameter 'workspace_pool_mib'", parameters.settings.get("workspace_pool_mib")
    if text is None:
        if engine == "ge_session":
            expected = "MiB for all that GE allocates, as it does not tell what its graph needs"
            errors.add(field, "none", expected)
        return None
    return read_whole(field, text, errors, least=1) * 2**20


_MOST_BUFFERS: Final = 4
_MOST_WEIGHT: Final = 1000.0


@dataclass(frozen=True, slots=True)
class ServiceShare:
    """A model's part in the device service."""

    weight: float
    priority: int


def read_service_share(parameters: Parameters, errors: ConfigErrors) -> ServiceShare | None:
    """None for a model that executes in its own process."""
    settings = parameters.settings
    service = read_choice("placement", ("local", "service"), parameters, errors) == "service"
    if not service:
        for name in ("service_weight", "service_priority"):
            if name in settings:
                expected = "nothing, or placement: service"
                errors.add(f"parameter '{name}'", f"'{settings[name]}'", expected)
        return None
    if "workspace_pool_mib" in settings:
        expected = "nothing: with placement: service the service has the workspace of all models"
        errors.add(
            "parameter 'workspace_pool_mib'", f"'{settings['workspace_pool_mib']}'", expected
        )
    priority = settings.get("service_priority", "0")
    return ServiceShare(
        _weight(settings.get("service_weight", "1"), errors),
        read_whole("parameter 'service_priority'", priority, errors, least=0),
    )


def _weight(text: str, errors: ConfigErrors) -> float:
    try:
        weight = float(text)
    except ValueError:
        weight = math.nan
    if 1 / _MOST_WEIGHT <= weight <= _MOST_WEIGHT:
        return weight
    errors.add(
        "parameter 'service_weight'",
        f"'{text}'",
        f"a number from {1 / _MOST_WEIGHT:g} to {_MOST_WEIGHT:g}",
    )
    return 1.0
