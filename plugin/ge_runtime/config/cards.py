"""Parameters of Ascend cards, some from Huawei's backend `npu_ge`; flags of ATC; recordings.

`profile` and `dump` let CANN record executions, on one card and for the whole process:

- `profile`: `dir=/var/prof, batches=20, from=100`: msprof profiles executions 100 to 119, counted
  from the start of serving, into that existing folder. Defaults: `batches=10`, `from=1`. `metrics`
  selects what the AI Core counts: `pipe` (default), `arithmetic`, `memory`, `l0`, `conflict`, `ub`,
  `l2` or `none`.
- `dump`: `dir=/var/dump, batches=1, from=1, mode=output, layers=conv1;pool1` writes the outputs of
  operators, their inputs (`mode=input`) or both (`mode=all`) in these executions. Without `layers`
  it writes the tensors of all operators.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ge_runtime.config import parameter_table as table
from ge_runtime.config.parameters import ConfigErrors, Parameters, is_inside, split_pairs
from ge_runtime.specs import ROWS

NPU: Final = "npu"
"""The device kind of Ascend cards such as npu:0."""

ATC_FLAGS: Final = {
    "ge.aicoreNum": "--aicore_num",
    "ge.deterministic": "--deterministic",
    "ge.enableSingleStream": "--enable_single_stream",
    "ge.exec.disableReuseMemory": "--disable_reuse_memory",
    "ge.exec.precision_mode_v2": "--precision_mode_v2",
    "ge.externalWeight": "--external_weight",
}
"""The equivalent flag of ATC for each option of GE."""

SESSION_LEVEL: Final = "session"
GRAPH_LEVEL: Final = "graph"

GE_LEVELS: Final = {
    **dict.fromkeys(ATC_FLAGS, SESSION_LEVEL),
    "ge.graph_compiler_cache_dir": SESSION_LEVEL,
    "ge.graph_key": GRAPH_LEVEL,
    "ge.inputShape": GRAPH_LEVEL,
    "ge.dynamicDims": GRAPH_LEVEL,
}
"""The level of each option of GE: it is given when GE's session is created, or with the graph.

GE itself gets no options, as it is initialized once for all models of a process.
"""

# In `graph.ge.x` and `session.ge.x` the option is the text after the first dot; in `ge.x` it is the
# whole key.
_OPTION_PREFIXES: Final = ((table.GRAPH_GE, ""), (table.SESSION_GE, ""), (table.GE, "ge."))
"""Families, each with the prefix that its targets need to be names of options."""

_OF_BUILD: Final = "none, as `ge-runtime build` sets it"
_SIZES: Final = "limit.<axis> and gears.<axes>, which give the sizes"
_TENSORS: Final = "none: inputs and outputs are those of the graph and of config.pbtxt"
_PRECISION: Final = "graph.ge.exec.precision_mode_v2, or --precision"
_NO_MODEL: Final = "none: with it ATC does not compile a graph"

_OWNED: Final[Mapping[str, str]] = {
    **dict.fromkeys(("model", "output", "framework", "mode"), _OF_BUILD),
    "soc_version": "--soc-version, which names the chip",
    **dict.fromkeys(("input_shape", "input_shape_range", "input_format", "dynamic_dims"), _SIZES),
    **dict.fromkeys(("dynamic_batch_size", "dynamic_image_size"), _SIZES),
    "insert_op_conf": "aipp.<input>, which says how images are converted",
    **dict.fromkeys(("input_fp16_nodes", "output_type", "out_nodes"), _TENSORS),
    **dict.fromkeys(("is_input_adjust_hw_layout", "is_output_adjust_hw_layout"), _TENSORS),
    **dict.fromkeys(("singleop", "om", "json", "help"), _NO_MODEL),
    **{flag.removeprefix("--"): f"graph.{option}" for option, flag in ATC_FLAGS.items()},
    "precision_mode": _PRECISION,
    "precision_mode_v2": _PRECISION,
    "external_weight": "none: a card's weights are loaded from the .om",
}
"""Flags that a model cannot set, each with what to use instead."""

ATC_FILES: Final = frozenset(
    (
        *("keep_dtype", "modify_mixlist", "op_precision_mode", "customize_dtypes"),
        *("fusion_switch_file", "compression_optimize_conf", "compress_weight_conf"),
        *("mdl_bank_path", "op_bank_path"),
    )
)
"""Flags whose value is a file that ATC reads, or AOE's folder of tuned operators."""

_FLAG: Final = re.compile("[a-z][a-z0-9_]*")


def executes_om(devices: Sequence[str], engine: str) -> bool:
    """Return whether the model may execute .om files on a card."""
    return devices[0].partition(":")[0] == NPU and engine in ("auto", "om")


def read_device_ids(parameters: Parameters) -> tuple[str, ...] | None:
    """Return the devices of `device_ids`, each repeated once per engine; None if not given."""
    blocks, errors = parameters.text(table.EXEC_BLOCKS), parameters.errors
    if parameters.text(table.DEVICE_IDS) is None:
        if blocks is not None:
            expected = "'device_ids' as well; or list each device in 'devices' that many times"
            errors.add("parameter 'device_exec_blocks'", f"'{blocks}'", expected)
        return None
    if parameters.text(table.DEVICES) is not None:
        errors.add("parameter 'device_ids'", "'devices' as well", "one of the two")
    ids = parameters.get(table.DEVICE_IDS)
    if ids is None:
        return None
    count = parameters.get(table.EXEC_BLOCKS)
    return tuple(f"{NPU}:{each}" for each in ids for _ in range(count))


def check_static_model(
    parameters: Parameters, axes: Iterable[str], geared: Container[str], *, rows: int
) -> None:
    """Add an error for axes without gears if `static_model` is set.

    rows: the largest number of rows of a batch.
    """
    free = [axis for axis in (*([ROWS] if rows > 1 else []), *axes) if axis not in geared]
    if parameters.get(table.STATIC_MODEL) and free:
        expected = f"gears for {', '.join(free)}: a static model has no other sizes"
        parameters.errors.add("parameter 'static_model'", "'1'", expected)


def _has_card(devices: Sequence[str]) -> bool:
    # One card is enough: devices of two kinds are an error of their own.
    return any(device.partition(":")[0] == NPU for device in devices)


def read_ge_options(
    parameters: Parameters, devices: Sequence[str], *, engine: str
) -> dict[str, str]:
    """Return the options of GE. Options that nothing would use are errors."""
    known = GE_LEVELS if engine == "ge_session" else ATC_FLAGS
    options: dict[str, str] = {}
    errors = parameters.errors
    for family, prefix in _OPTION_PREFIXES:
        for field, target, value in parameters.entries(family):
            option = prefix + target
            if option not in known:
                errors.add_unknown(field, "option of GE that a model can have", option, known)
            elif not _has_card(devices):
                expected = "a card among them: it is an option of Ascend's compiler"
                errors.add(field, f"devices {', '.join(devices)}", expected)
            elif engine != "ge_session" and option == "ge.externalWeight" and value != "0":
                errors.add(field, f"'{value}'", "'0': a card's weights are loaded from the .om")
            elif options.setdefault(option, value) != value:
                found = f"'{value}', and '{options[option]}' at another level"
                errors.add(field, found, "one value")
    return options


def misused_flag(flag: str) -> str | None:
    """Return what to use instead of a flag of ATC; None if the flag may be passed on."""
    if not _FLAG.fullmatch(flag):
        return "the name of a flag of ATC without its dashes, e.g. op_select_implmode"
    return _OWNED.get(flag)


def read_atc_flags(
    parameters: Parameters, devices: Sequence[str], *, engine: str
) -> dict[str, str]:
    """Return the flags of ATC, without their dashes. Flags that are not passed on are errors."""
    flags: dict[str, str] = {}
    errors = parameters.errors
    for field, flag, value in parameters.entries(table.ATC):
        if expected := misused_flag(flag):
            errors.add(field, f"'{value}'", expected)
        elif engine == "ge_session" or not _has_card(devices):
            found = f"engine {engine}, devices {', '.join(devices)}"
            errors.add(field, found, "a card, and a model.om that ATC compiles")
        elif flag in ATC_FILES and not is_inside(value):
            errors.add(field, f"'{value}'", "a path inside of the model's folder, e.g. keep.cfg")
        else:
            flags[flag] = value
    return flags


METRICS: Final[Mapping[str, int]] = {
    "arithmetic": 0,
    "pipe": 1,
    "memory": 2,
    "l0": 3,
    "conflict": 4,
    "ub": 5,
    "l2": 6,
    "none": 0xFF,
}
"""The value of aclprofAicoreMetrics for each name."""
_MODES: Final = ("output", "input", "all")
_EXAMPLES: Final = {
    "profile": "dir=/var/prof, batches=20, from=100",
    "dump": "dir=/var/dump, batches=1, layers=conv1;pool1",
}
_KEYS: Final = {
    "profile": ("dir", "batches", "from", "metrics"),
    "dump": ("dir", "batches", "from", "mode", "layers"),
}


@dataclass(frozen=True, slots=True)
class Window:
    """The executions of a model that are recorded, and where."""

    parameter: str
    """"profile" or "dump"."""
    folder: str
    first: int
    """Number of the first execution, from 1; executions of the load are not counted."""
    count: int
    metrics: str = "pipe"
    mode: str = "output"
    layers: tuple[str, ...] = ()
    """Operators of a dump; empty for all."""

    @property
    def last(self) -> int:
        """Number of the last execution."""
        return self.first + self.count - 1

    def __str__(self) -> str:
        return f"{self.parameter} of executions {self.first} to {self.last}"


def read_window(parameters: Parameters, devices: Sequence[str], *, engine: str) -> Window | None:
    """Return the executions to record, or None."""
    texts = {own.key: parameters.get(own) for own in (table.PROFILE, table.DUMP)}
    given = {key: text for key, text in texts.items() if text is not None}
    if not given:
        return None
    errors = parameters.errors
    if len(given) > 1:
        expected = "one of the two: CANN cannot record both at the same time"
        errors.add("parameter 'dump'", "'profile' as well", expected)
    name, text = next(iter(given.items()))
    field, example = f"parameter '{name}'", f"as in '{_EXAMPLES[name]}'"
    if not executes_om(devices, engine):
        found = f"'{text}' for engine {engine} on {', '.join(devices)}"
        errors.add(field, found, "an .om file on a card: devices: npu:0")
    if parameters.text(table.PLACEMENT) == "service":
        expected = "placement: local: the service executes for all models of the card"
        errors.add(field, "placement: service", expected)
    parts = dict(split_pairs(text))
    if unknown := sorted(parts.keys() - {*_KEYS[name]}):
        errors.add(field, f"'{unknown[0]}'", f"{', '.join(_KEYS[name])}, {example}")
    folder = parts.get("dir", "")
    if not folder.startswith("/"):
        errors.add(field, f"dir '{folder}'", f"a folder from / on, {example}")
    batches = _count(field, "batches", parts, 10 if name == "profile" else 1, errors)
    first = _count(field, "from", parts, 1, errors)
    metrics, mode = parts.get("metrics", "pipe"), parts.get("mode", "output")
    for key, found, known in (("metrics", metrics, tuple(METRICS)), ("mode", mode, _MODES)):
        if found not in known:
            errors.add(field, f"{key} '{found}'", f"one of {', '.join(known)}")
    layers = tuple(layer for layer in parts.get("layers", "").split(";") if layer)
    return Window(name, folder, first, batches, metrics, mode, layers)


def _count(
    field: str, key: str, parts: Mapping[str, str], default: int, errors: ConfigErrors
) -> int:
    text = parts.get(key, str(default))
    if not text.isdecimal() or not int(text):
        errors.add(field, f"{key} '{text}'", "a whole number of at least 1")
        return default
    return int(text)
