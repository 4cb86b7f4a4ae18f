"""The settings of the whole model: engine, devices, threads, stages, and how launches are chosen.

- `engine`: `auto` (default), `onnxruntime`, `torch`, `om` or `ge_session`.
- `intra_op_threads`: threads that one execution may use. Default: the cores of the process shared
  by all instances and their devices, at least 1.
- `devices`: one engine and one lane each, e.g. `cpu, cpu` or `cuda:0, cuda:1`. Default `cpu`.
- `stages`: the names of the graphs in the version folder, in the order in which they run, e.g.
  `encoder, classifier` for encoder.onnx and classifier.onnx. Default: the one artifact.
- `cost`: `calibrate` (default: timed at load), or what a launch costs: `launch_us=120,
  element_ns=35.2, element2_ns=0.01`, all three, for a launch, for an element of a row and for a
  squared element of a row.
- `oversize`: what becomes of a request that no gear holds: `error` (default) refuses it,
  `fallback` executes it alone at its own size.
- `histogram`: where the sizes of requests are recorded, a path inside the version folder.
- `warmup`: `gears` (default: each is executed once at load) or `none`.
- `workspace_pool_mib`: the capacity of the device's pool of workspace, in MiB; on a card of each
  lane, on a GPU of each engine.
- `rows`: for `max_batch_size: 0` where the model's own code prepares the graph's inputs: the most
  rows of a batch. Prepared tensors then have a batch dimension, of as many rows as the code makes
  of a request, and so have the graph's inputs and outputs; config.pbtxt writes it as the first
  dim of every output, -1.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Final

from ge_runtime.config.faults import Faults
from ge_runtime.config.kept import NPU, read_kept_devices
from ge_runtime.config.parameters import Parameters, split_names
from ge_runtime.config.values import read_whole

ENGINES: Final = ("auto", "onnxruntime", "torch", "om", "ge_session")
DEVICES: Final = ("cpu", "cuda:0", "npu:0")
"""For people: of GPUs and cards there are others, such as npu:1."""


_CARD: Final = re.compile(r"(cuda|npu):\d+", re.ASCII)
_KINDS: Final = ("cpu", "cuda", NPU)
_ENGINES_ON: Final = {
    "cpu": ("onnxruntime", "torch"),
    "cuda": ("onnxruntime", "torch"),
    NPU: ("om", "torch", "ge_session"),
}
"""Kind of device: the engines that execute there."""

_STAGE_NAME: Final = re.compile(r"\w[\w.-]*", re.ASCII)
_COSTS: Final = {"launch_us": 1e-6, "element_ns": 1e-9, "element2_ns": 1e-9}
"""Part of a cost: its unit in seconds."""


def read_engine(parameters: Parameters, devices: Sequence[str], faults: Faults) -> str:
    """One of ENGINES, which the devices can execute."""
    engine = parameters.settings.get("engine", "auto")
    if engine not in ENGINES:
        faults.add_unknown("parameter 'engine'", "engine", engine, ENGINES)
    elif engine != "auto" and not any(
        engine in _ENGINES_ON.get(kind_of(each), ()) for each in devices
    ):
        needed = "cpu, or GPUs, e.g. cuda:0"
        if engine not in _ENGINES_ON["cpu"]:
            needed = "cards, e.g. npu:0"
        found = f"engine {engine} for devices {', '.join(devices)}"
        faults.add("parameter 'engine'", found, f"devices: {needed}")
    return engine


def read_devices(parameters: Parameters, faults: Faults) -> tuple[str, ...]:
    """At least one, all of one kind; a device may be there several times."""
    devices = read_kept_devices(parameters, faults)
    if devices is None:
        devices = split_names(parameters.settings.get("devices", "cpu"))
    for device in dict.fromkeys(devices):
        if device not in DEVICES and not _CARD.fullmatch(device):
            faults.add_unknown("parameter 'devices'", "device", device, DEVICES)
    kinds = sorted({kind_of(device) for device in devices})
    if len(kinds) > 1 and all(kind in _KINDS for kind in kinds):
        faults.add("parameter 'devices'", " and ".join(kinds), "devices of one kind")
    return devices


def kind_of(device: str) -> str:
    """The kind of a device that config.pbtxt names: "npu" of "npu:0"."""
    return device.partition(":")[0]


def read_threads(parameters: Parameters, faults: Faults, *, share: int) -> int:
    """The threads of one execution; share: how many cores each engine has for itself."""
    text = parameters.settings.get("intra_op_threads", str(max(1, share)))
    return read_whole("parameter 'intra_op_threads'", text, faults, least=1)


def read_rows(parameters: Parameters, max_batch_size: int, faults: Faults) -> int:
    """The most rows of a batch; 0 if the graph has no batch dimension."""
    place, text = "parameter 'rows'", parameters.settings.get("rows")
    if text is None:
        return max_batch_size
    if max_batch_size:
        found = f"max_batch_size {max_batch_size}"
        faults.add(place, found, "0: otherwise that says how many rows a batch has")
    if not parameters.families["prepared"]:
        expected = "at least one: only the model's own code can make rows of such requests"
        faults.add(place, "no 'prepared.<tensor>'", expected)
    return read_whole(place, text, faults, least=1)


def read_stages(parameters: Parameters, faults: Faults) -> tuple[str, ...]:
    """The names of the graphs in order; empty if the model is one artifact."""
    text = parameters.settings.get("stages")
    if text is None:
        return ()
    stages = split_names(text)
    if len(set(stages)) < len(stages) or not all(map(_STAGE_NAME.fullmatch, stages)):
        expected = "the names of files without their endings, each once, e.g. encoder, classifier"
        faults.add("parameter 'stages'", f"'{text}'", expected)
    return stages


def read_cost(parameters: Parameters, faults: Faults) -> tuple[float, float, float] | None:
    """Seconds of a launch, of an element of a row, of a squared element; None: to be timed."""
    text = parameters.settings.get("cost", "calibrate")
    if text == "calibrate":
        return None
    given = [part.partition("=") for part in split_names(text)]
    if sorted(name.strip() for name, _, _ in given) == sorted(_COSTS):
        costs = {name.strip(): _seconds(number, _COSTS[name.strip()]) for name, _, number in given}
        if all(0 <= cost < math.inf for cost in costs.values()):
            return costs["launch_us"], costs["element_ns"], costs["element2_ns"]
    expected = "'calibrate', or numbers of at least 0 as in 'launch_us=120, element_ns=35.2, "
    faults.add("parameter 'cost'", f"'{text}'", expected + "element2_ns=0.01'")
    return None


def _seconds(number: str, unit: float) -> float:
    """The number times its unit; not a number (nan) if it is none."""
    try:
        return float(number) * unit
    except ValueError:
        return math.nan


def read_word(name: str, words: tuple[str, str], parameters: Parameters, faults: Faults) -> str:
    """The setting `name`: one of two words, the first if it is not there."""
    word = parameters.settings.get(name, words[0])
    if word not in words:
        faults.add(f"parameter '{name}'", f"'{word}'", f"'{words[0]}' or '{words[1]}'")
    return word


def read_histogram(parameters: Parameters, faults: Faults) -> str | None:
    """A path relative to the version folder, and inside it; None if there is none."""
    text = parameters.settings.get("histogram")
    if text is None:
        return None
    path = PurePosixPath(text)
    if path.is_absolute() or ".." in path.parts or not path.name:
        expected = "a path inside the version folder, e.g. histogram.json"
        faults.add("parameter 'histogram'", f"'{text}'", expected)
    return str(path)


def read_pool_bytes(parameters: Parameters, faults: Faults, *, engine: str) -> int | None:
    """The capacity of the workspace pool in bytes; None if there is none."""
    place, text = "parameter 'workspace_pool_mib'", parameters.settings.get("workspace_pool_mib")
    if text is None:
        if engine == "ge_session":
            expected = "MiB for all that GE allocates, as it does not tell what its graph needs"
            faults.add(place, "none", expected)
        return None
    return read_whole(place, text, faults, least=1) * 2**20
