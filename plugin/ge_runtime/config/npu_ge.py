"""Parameters of cards: those shared with Huawei's backend `npu_ge`, and flags of ATC."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Final

from ge_runtime.config.parameter_table import (
    ATC,
    DEVICE_IDS,
    DEVICES,
    EXEC_BLOCKS,
    GE,
    GRAPH_GE,
    SESSION_GE,
    STATIC_MODEL,
)
from ge_runtime.config.parameters import Parameters
from ge_runtime.config.values import is_inside
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
"""Option of GE to the equivalent flag of ATC."""

SESSION_LEVEL: Final = "session"
GRAPH_LEVEL: Final = "graph"

GE_LEVELS: Final = {
    **dict.fromkeys(ATC_FLAGS, SESSION_LEVEL),
    "ge.graph_compiler_cache_dir": SESSION_LEVEL,
    "ge.graph_key": GRAPH_LEVEL,
    "ge.inputShape": GRAPH_LEVEL,
    "ge.dynamicDims": GRAPH_LEVEL,
}
"""Option of GE to its level: given to GE's session when it is created, or with the graph.

GE itself gets no options, as it is initialized once for all models of a process.
"""

# In `graph.ge.x` and `session.ge.x` the option is the text after the first dot; in `ge.x` it is the
# whole key.
_OPTION_PREFIXES: Final = ((GRAPH_GE, ""), (SESSION_GE, ""), (GE, "ge."))
"""Families with the text to prepend to a target for the name of the option."""

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
"""Flag to what to use instead."""

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
    blocks, errors = parameters.text(EXEC_BLOCKS), parameters.errors
    if parameters.text(DEVICE_IDS) is None:
        if blocks is not None:
            expected = "device_ids beside it; without, list each of `devices` as often"
            errors.add("parameter 'device_exec_blocks'", f"'{blocks}'", expected)
        return None
    if parameters.text(DEVICES) is not None:
        errors.add("parameter 'device_ids'", "'devices' as well", "one of the two")
    ids = parameters.get(DEVICE_IDS)
    if ids is None:
        return None
    count = parameters.get(EXEC_BLOCKS)
    return tuple(f"{NPU}:{each}" for each in ids for _ in range(count))


def check_static_model(
    parameters: Parameters, axes: Iterable[str], geared: Container[str], *, rows: int
) -> None:
    """Add an error for axes without gears if `static_model` is set.

    rows: the largest number of rows of a batch.
    """
    free = [axis for axis in (*([ROWS] if rows > 1 else []), *axes) if axis not in geared]
    if parameters.get(STATIC_MODEL) and free:
        expected = f"gears for {', '.join(free)}: a static model has no other sizes"
        parameters.errors.add("parameter 'static_model'", "'1'", expected)


def _has_card(devices: Sequence[str]) -> bool:
    # Any device counts: devices of two kinds have an error of their own.
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
    for field, flag, value in parameters.entries(ATC):
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
