"""Parameters of cards: those of Huawei's backend `npu_ge` that mean the same here, flags of ATC.

- `device_ids`: cards, e.g. `0, 1`: the devices npu:0 and npu:1.
- `device_exec_blocks`: how many engines each device has: with `2` each counts twice.
- `static_model`: `1`: executions have sizes that were prepared, and no others: gears for every
  axis, and for `batch`. `0` (default): axes may be free.
- `graph.ge.<option>`, `session.ge.<option>`, `ge.<option>`: an option of Ascend's graph engine (GE)
  for compiling the model, one of ATC_FLAGS; with `engine: ge_session` one of GE_LEVELS. It has one
  value, wherever it is given.
- `atc.<flag>`: any other flag of ATC, which `ge-runtime build` passes on: all but those that a
  served model depends on, which have parameters of their own or none.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Final

from ge_runtime.config.triton_config import ConfigErrors, Parameters, read_whole, split_names
from ge_runtime.specs import ROWS

NPU: Final = "npu"
"""The kind of an Ascend card, e.g. of npu:0."""

ATC_FLAGS: Final = {
    "ge.aicoreNum": "--aicore_num",
    "ge.deterministic": "--deterministic",
    "ge.enableSingleStream": "--enable_single_stream",
    "ge.exec.disableReuseMemory": "--disable_reuse_memory",
    "ge.exec.precision_mode_v2": "--precision_mode_v2",
    "ge.externalWeight": "--external_weight",
}
"""Option of GE: the flag of ATC that is the same."""

SESSION_LEVEL: Final = "session"
GRAPH_LEVEL: Final = "graph"

GE_LEVELS: Final = {
    **dict.fromkeys(ATC_FLAGS, SESSION_LEVEL),
    "ge.graph_compiler_cache_dir": SESSION_LEVEL,
    "ge.graph_key": GRAPH_LEVEL,
    "ge.inputShape": GRAPH_LEVEL,
    "ge.dynamicDims": GRAPH_LEVEL,
}
"""Option of GE: whether a session of GE gets it when it is made, or with the graph.

GE itself gets none: it is initialized once for all models of a process.
"""

# `graph.ge.x` and `session.ge.x` hold the whole name of the option behind the first dot; of `ge.x`
# the option is the whole key.
_OPTION_PREFIXES: Final = {"graph": "", "session": "", "ge": "ge."}
"""Family of parameters: what stands before its target in the name of the option."""


_OF_BUILD: Final = "none, as `ge-runtime build` sets it"
_SIZES: Final = "limit.<axis> and gears.<axes>, which say the sizes"
_TENSORS: Final = "none: inputs and outputs are those of the graph, as config.pbtxt has them"
_PRECISION: Final = "graph.ge.exec.precision_mode_v2, or --precision"
_NO_MODEL: Final = "none: with it ATC makes no model of a graph"

_OWNED: Final[Mapping[str, str]] = {
    **dict.fromkeys(("model", "output", "framework", "mode"), _OF_BUILD),
    "soc_version": "--soc-version, which names the chip",
    **dict.fromkeys(("input_shape", "input_shape_range", "input_format", "dynamic_dims"), _SIZES),
    **dict.fromkeys(("dynamic_batch_size", "dynamic_image_size"), _SIZES),
    "insert_op_conf": "aipp.<input>, which says what becomes of images",
    **dict.fromkeys(("input_fp16_nodes", "output_type", "out_nodes"), _TENSORS),
    **dict.fromkeys(("is_input_adjust_hw_layout", "is_output_adjust_hw_layout"), _TENSORS),
    **dict.fromkeys(("singleop", "om", "json", "help"), _NO_MODEL),
    **{flag.removeprefix("--"): f"graph.{option}" for option, flag in ATC_FLAGS.items()},
    "precision_mode": _PRECISION,
    "precision_mode_v2": _PRECISION,
    "external_weight": "none: a card's weights are loaded from the .om",
}
"""Flag: what to use instead."""

ATC_FILES: Final = frozenset(
    (
        *("keep_dtype", "modify_mixlist", "op_precision_mode", "customize_dtypes"),
        *("fusion_switch_file", "compression_optimize_conf", "compress_weight_conf"),
        *("mdl_bank_path", "op_bank_path"),
    )
)
"""Flags whose value is a file, or AOE's folder of tuned operators, that ATC reads."""

_FLAG: Final = re.compile("[a-z][a-z0-9_]*")


def executes_om(devices: Sequence[str], engine: str) -> bool:
    """Whether .om files on a card may be what is executed."""
    return devices[0].partition(":")[0] == NPU and engine in ("auto", "om")


def read_device_ids(parameters: Parameters, errors: ConfigErrors) -> tuple[str, ...] | None:
    """The devices of `device_ids`, each as often as it has engines; None if it is not there."""
    settings, field = parameters.settings, "parameter 'device_ids'"
    text = settings.get("device_ids")
    blocks = settings.get("device_exec_blocks")
    if text is None:
        if blocks is not None:
            expected = "device_ids beside it; without, list each of `devices` as often"
            errors.add("parameter 'device_exec_blocks'", f"'{blocks}'", expected)
        return None
    if "devices" in settings:
        errors.add(field, "'devices' as well", "one of the two")
    ids = split_names(text)
    # By their numbers: 1 and 01 are one card.
    if not all(map(str.isdecimal, ids)) or len({*map(int, ids)}) < len(ids):
        errors.add(field, f"'{text}'", "the numbers of cards, each once, e.g. 0, 1")
        return None
    blocks = "1" if blocks is None else blocks
    count = read_whole("parameter 'device_exec_blocks'", blocks, errors, least=1)
    return tuple(f"{NPU}:{int(each)}" for each in ids for _ in range(count))


def check_static_model(
    parameters: Parameters,
    axes: Iterable[str],
    geared: Container[str],
    errors: ConfigErrors,
    *,
    rows: int,
) -> None:
    """Errors for what is free in spite of `static_model`. rows: the most rows of a batch."""
    field, text = "parameter 'static_model'", parameters.settings.get("static_model", "0")
    if text not in ("0", "1"):
        errors.add(field, f"'{text}'", "'0' or '1'")
    free = [axis for axis in (*([ROWS] if rows > 1 else []), *axes) if axis not in geared]
    if text == "1" and free:
        expected = f"gears for {', '.join(free)}: a static model has no other sizes"
        errors.add(field, "'1'", expected)


def read_ge_options(
    parameters: Parameters, devices: Sequence[str], errors: ConfigErrors, *, engine: str
) -> dict[str, str]:
    """Option of GE: its value. Errors for those that nothing would take."""
    known = GE_LEVELS if engine == "ge_session" else ATC_FLAGS
    options: dict[str, str] = {}
    for family, prefix in _OPTION_PREFIXES.items():
        for target, value in parameters.families[family].items():
            field, option = f"parameter '{family}.{target}'", prefix + target
            if option not in known:
                errors.add_unknown(field, "option of GE that a model can have", option, known)
            # Not the devices' kind as a whole: they may be of two kinds, which has its own error.
            elif not any(device.partition(":")[0] == NPU for device in devices):
                expected = "a card among them: it is an option of Ascend's compiler"
                errors.add(field, f"devices {', '.join(devices)}", expected)
            elif engine != "ge_session" and option == "ge.externalWeight" and value != "0":
                errors.add(field, f"'{value}'", "'0': a card's weights are loaded from the .om")
            elif options.setdefault(option, value) != value:
                found = f"'{value}', and '{options[option]}' at another level"
                errors.add(field, found, "one value")
    return options


def misused_flag(flag: str) -> str | None:
    """What is expected instead of this flag; None for one that may be passed on."""
    if not _FLAG.fullmatch(flag):
        return "the name of a flag of ATC without its dashes, e.g. op_select_implmode"
    return _OWNED.get(flag)


def read_atc_flags(
    parameters: Parameters, devices: Sequence[str], errors: ConfigErrors, *, engine: str
) -> dict[str, str]:
    """Flag, without its dashes: its value. Errors for those that are not passed on."""
    flags: dict[str, str] = {}
    for flag, value in parameters.families["atc"].items():
        field = f"parameter 'atc.{flag}'"
        if expected := misused_flag(flag):
            errors.add(field, f"'{value}'", expected)
        elif engine == "ge_session" or not any(
            device.partition(":")[0] == NPU for device in devices
        ):
            found = f"engine {engine}, devices {', '.join(devices)}"
            errors.add(field, found, "a card, and a model.om that ATC makes")
        elif flag in ATC_FILES and not _is_inside(value):
            errors.add(field, f"'{value}'", "a path inside of the model's folder, e.g. keep.cfg")
        else:
            flags[flag] = value
    return flags


def _is_inside(path: str) -> bool:
    pure = PurePosixPath(path)
    return bool(path) and not pure.is_absolute() and ".." not in pure.parts
