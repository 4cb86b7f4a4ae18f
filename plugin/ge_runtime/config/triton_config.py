"""Triton's model configuration as plain values: declared tensors, and `parameters` by their keys.

Reading does not stop at an error: ConfigErrors collects them all. What the value of a parameter
means is documented in the module that reads it.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeGuard

import numpy as np

from ge_runtime.errors import ConfigFault
from ge_runtime.specs import UNKNOWN, DType, Number, TensorSpec


class ConfigErrors:
    """Collects what is wrong with one model's configuration. For one thread."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._found: list[str] = []

    def add(self, field: str, found: object, expected: str) -> None:
        """Add that `found` stands in `field` of config.pbtxt where `expected` should."""
        self._found.append(f"{field}: found {found}, expected {expected}")

    def add_unknown(self, field: str, kind: str, found: str, known: Iterable[str]) -> None:
        """Add a name of some `kind` that is none of `known`, and offer the nearest of them."""
        names = sorted(known)
        expected = f"one of: {', '.join(names)}" if names else f"none: this model has no {kind}"
        hint = did_you_mean(found, dict(zip(names, names, strict=True)))
        self.add(field, f"no {kind} '{found}'", expected + hint)

    def raise_any(self) -> None:
        """Raises ConfigFault with all that was added, if anything was."""
        if self._found:
            raise ConfigFault(self._model, self._found)


def did_you_mean(found: str, known: Mapping[str, str]) -> str:
    """The words that offer the name of `known` nearest to `found`, or none if all are far.

    known: each name, and what is offered for it.
    """
    # As it is written first, and only then in lower case, as most names are.
    near = difflib.get_close_matches(found, known, n=1)
    near = near or difflib.get_close_matches(found.lower(), known, n=1)
    return f"; did you mean '{known[near[0]]}'?" if near else ""


_SETTINGS: Final = (
    "engine",
    "intra_op_threads",
    "devices",
    "stages",
    "cost",
    "cost_cache",
    "oversize",
    "packing",
    "rows",
    "histogram",
    "warmup",
    "early_answers",
    "load_check",
    "reproducible",
    "unplanned_memory",
    "profile",
    "dump",
    "workspace_pool_mib",
    "io_buffers",
    "placement",
    "service_weight",
    "service_priority",
    "resident_rows",
    "resident_reads",
    "resident_s",
    "resident_spare_s",
    "device_ids",
    "device_exec_blocks",
    "static_model",
)
_FAMILIES: Final = {
    "axes": "axes.<input or output>",
    "limit": "limit.<axis>",
    "min": "min.<axis>",
    "align": "align.<axis>",
    "axis_length": "axis_length.<axis>",
    "gears": "gears.<axes>",
    "mask": "mask.<graph input>",
    "lengths": "lengths.<graph input>",
    "positions": "positions.<graph input>",
    "offsets": "offsets.<graph input>",
    "constant": "constant.<graph input>",
    "state": "state.<graph input>",
    "batch_axis": "batch_axis.<tensor>",
    "range": "range.<input>",
    "pad": "pad.<input>",
    "padding": "padding.<axis>",
    "default": "default.<input>",
    "pass": "pass.<output>",
    "prepared": "prepared.<tensor>",
    "resident": "resident.<input or output>",
    "aipp": "aipp.<input>",
    "jpeg": "jpeg.<prepared tensor>",
    "graph": "graph.ge.<option>",
    "session": "session.ge.<option>",
    "ge": "ge.<option>",
    "atc": "atc.<flag>",
}


@dataclass(frozen=True, slots=True)
class Parameters:
    """The parameters of one model as text, sorted by family: {"limit": {"tokens": "512"}, ...}.

    Every family is present, be it empty.
    """

    settings: Mapping[str, str]
    families: Mapping[str, Mapping[str, str]]

    @classmethod
    def read(cls, model_config: Mapping[str, object], errors: ConfigErrors) -> Parameters:
        """The parameters in Triton's JSON form. Unknown keys and other values become errors."""
        settings: dict[str, str] = {}
        families: dict[str, dict[str, str]] = {family: {} for family in _FAMILIES}
        entries = model_config.get("parameters") or {}
        if not isinstance(entries, Mapping):
            errors.add("parameters", repr(entries), "keys with string values")
            entries = {}
        # Sorted, because Triton hands them over in the order of a hash table: what is told of
        # them, and counted by their names, shall not change from one start to the next.
        for key, entry in sorted(entries.items()):
            # Upper case is the server's own, e.g. EXECUTION_ENV_PATH.
            if str(key).isupper():
                continue
            family, _, target = str(key).partition(".")
            value = entry.get("string_value") if isinstance(entry, Mapping) else None
            if key not in _SETTINGS and not (family in _FAMILIES and target):
                known = ", ".join((*_SETTINGS, *_FAMILIES.values()))
                hint = did_you_mean(family, _offers(target))
                errors.add(f"parameter '{key}'", "no such parameter", f"one of: {known}{hint}")
            elif not isinstance(value, str):
                errors.add(f"parameter '{key}'", repr(entry), 'value { string_value: "..." }')
            elif key in _SETTINGS:
                settings[key] = value.strip()
            else:
                families[family][target] = value.strip()
        return cls(settings, families)


def _offers(target: str) -> dict[str, str]:
    """What may have been meant instead of an unknown key that speaks of `target`, if of any."""
    families = {
        family: f"{family}.{target}" if target else words for family, words in _FAMILIES.items()
    }
    return {**dict(zip(_SETTINGS, _SETTINGS, strict=True)), **families}


def split_names(text: str) -> tuple[str, ...]:
    """The names in a comma-separated text, in order; commas within brackets separate none."""
    names, depth = [""], 0
    for character in text:
        depth += (character == "(") - (character == ")")
        if character == "," and depth <= 0:
            names.append("")
        else:
            names[-1] += character
    return tuple(name.strip() for name in names)


def split_pairs(text: str) -> list[tuple[str, str]]:
    """The names and values of `name=value, name=value`; a value is "" where there is no =."""
    parts = [part.partition("=") for part in split_names(text)]
    return [(name.strip(), value.strip()) for name, _, value in parts]


@dataclass(frozen=True, slots=True)
class DeclaredTensor:
    """A tensor as `input` or `output` lists it; its dims of -1 are UNKNOWN."""

    spec: TensorSpec
    optional: bool
    """Requests may lack it. Inputs only."""


def read_max_batch_size(model_config: Mapping[str, object], errors: ConfigErrors) -> int:
    """The declared max_batch_size, 0 if none."""
    value = model_config.get("max_batch_size", 0)
    return read_whole("max_batch_size", value, errors, least=0)


def read_instances(model_config: Mapping[str, object], errors: ConfigErrors) -> int:
    """How many instances of the model run on this host: at least 1."""
    instances = 0
    for field, group in read_entries(model_config, "instance_group", "groups", errors):
        count = read_whole(f"{field}: count", group.get("count", 1), errors, least=1)
        gpus = group.get("gpus") or []
        if not isinstance(gpus, list):
            errors.add(f"{field}: gpus", repr(gpus), "a list of device ids")
            gpus = []
        instances += count * max(1, len(gpus))  # a group has `count` instances on each device
    return max(1, instances)


def read_tensors(
    model_config: Mapping[str, object], section: str, errors: ConfigErrors
) -> dict[str, DeclaredTensor]:
    """The tensors declared in `section` ("input" or "output"), by name."""
    tensors: dict[str, DeclaredTensor] = {}
    for field, entry in read_entries(model_config, section, "tensors", errors):
        name = entry.get("name")
        if not isinstance(name, str) or not name or name in tensors:
            errors.add(f"{field}: name", repr(name), "a name of its own")
            continue
        dtype = read_dtype(f"{section} '{name}'", entry, errors)
        dims = _read_dims(f"{section} '{name}'", entry, errors)
        optional = entry.get("optional") or False
        if not isinstance(optional, bool):
            errors.add(f"{section} '{name}': optional", repr(optional), "true or false")
        tensors[name] = DeclaredTensor(TensorSpec(name, dtype, dims), bool(optional))
    return tensors


def without_rows(
    outputs: Mapping[str, DeclaredTensor], passed: Container[str], errors: ConfigErrors
) -> dict[str, DeclaredTensor]:
    """The outputs without the -1 for rows that their dims begin with; `passed` are left alone."""
    tensors = dict(outputs)
    for name, output in outputs.items():
        dims = output.spec.dims
        if name not in passed and dims[:1] == (UNKNOWN,):
            tensors[name] = replace(output, spec=replace(output.spec, dims=dims[1:]))
        elif name not in passed:
            errors.add(f"output '{name}': dims", list(dims), "-1 first, for the rows")
    return tensors


def read_entries(
    model_config: Mapping[str, object], section: str, things: str, errors: ConfigErrors
) -> list[tuple[str, Mapping[str, object]]]:
    """The mappings listed in `section`, each with its field; things: what they are, in words."""
    entries = model_config.get(section) or []
    if not _is_list_of_mappings(entries):
        errors.add(section, repr(entries), f"a list of {things}")
        return []
    return [(f"{section}[{index}]", entry) for index, entry in enumerate(entries)]


def read_dtype(field: str, entry: Mapping[str, object], errors: ConfigErrors) -> DType:
    """The `data_type` of an entry; after an error FP32, so that reading can go on."""
    name = entry.get("data_type")
    try:
        return DType.of_config(str(name))
    except KeyError:
        known = ", ".join(member.config_name for member in DType)
        errors.add(f"{field}: data_type", repr(name), f"one of: {known}")
        return DType.FP32


def _read_dims(field: str, entry: Mapping[str, object], errors: ConfigErrors) -> tuple[int, ...]:
    """The dims as the model meets them: those of `reshape` where there is one."""
    # Triton hands tensors to the model in the shape of `reshape`; `dims` is what clients send.
    reshape = entry.get("reshape")
    dims = reshape.get("shape", []) if isinstance(reshape, Mapping) else entry.get("dims", [])
    if isinstance(dims, list) and all(
        type(dim) is int and (dim > 0 or dim == UNKNOWN) for dim in dims
    ):
        return tuple(dims)
    errors.add(f"{field}: dims", repr(dims), "a list of sizes, each at least 1, or -1")
    return ()


def _is_list_of_mappings(value: object) -> TypeGuard[list[Mapping[str, object]]]:
    return isinstance(value, list) and all(isinstance(entry, Mapping) for entry in value)


_TRUTHS: Final = {"true": True, "1": True, "false": False, "0": False}


def read_whole(field: str, value: object, errors: ConfigErrors, *, least: int) -> int:
    """A whole number of at least `least`, given as one or as text; else an error, and `least`."""
    try:
        number = int(value) if isinstance(value, str) else value
    except ValueError:
        number = None
    # True and False are integers to Python, and none in a configuration.
    if isinstance(number, int) and not isinstance(number, bool) and number >= least:
        return number
    errors.add(field, repr(value), f"a whole number of at least {least}")
    return least


def read_number(text: str, dtype: DType) -> Number | None:
    """The element of `dtype` that `text` writes, or None if it is none; BYTES have none.

    Floats may be infinite or nan.
    """
    if dtype is DType.BYTES:
        return None
    if dtype is DType.BOOL:
        return _TRUTHS.get(text.lower())
    try:
        if dtype.is_integer:
            whole, range_ = int(text), np.iinfo(dtype.numpy)
            return whole if range_.min <= whole <= range_.max else None
        value = float(text)
    except ValueError:
        return None
    # Infinity and NaN are values of every float type; a finite number may be too large for it.
    return None if dtype.largest < abs(value) < math.inf else value
