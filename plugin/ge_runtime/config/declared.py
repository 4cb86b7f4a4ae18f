"""What config.pbtxt declares apart from `parameters`: tensors, batch size, instances."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from typing import TypeGuard

from ge_runtime.config.faults import Faults
from ge_runtime.config.values import read_whole
from ge_runtime.specs import UNKNOWN, DType, TensorSpec


@dataclass(frozen=True, slots=True)
class Declared:
    """A tensor as `input` or `output` lists it; its dims of -1 are UNKNOWN."""

    spec: TensorSpec
    optional: bool
    """Requests may lack it. Inputs only."""


def read_max_batch_size(model_config: Mapping[str, object], faults: Faults) -> int:
    """The declared max_batch_size, 0 if none."""
    value = model_config.get("max_batch_size", 0)
    return read_whole("max_batch_size", value, faults, least=0)


def read_instances(model_config: Mapping[str, object], faults: Faults) -> int:
    """How many instances of the model run on this host: at least 1."""
    instances = 0
    for place, group in read_entries(model_config, "instance_group", "groups", faults):
        count = read_whole(f"{place}: count", group.get("count", 1), faults, least=1)
        gpus = group.get("gpus") or []
        if not isinstance(gpus, list):
            faults.add(f"{place}: gpus", repr(gpus), "a list of device ids")
            gpus = []
        instances += count * max(1, len(gpus))  # a group has `count` instances on each device
    return max(1, instances)


def read_tensors(
    model_config: Mapping[str, object], section: str, faults: Faults
) -> dict[str, Declared]:
    """The tensors declared in `section` ("input" or "output"), by name."""
    tensors: dict[str, Declared] = {}
    for place, entry in read_entries(model_config, section, "tensors", faults):
        name = entry.get("name")
        if not isinstance(name, str) or not name or name in tensors:
            faults.add(f"{place}: name", repr(name), "a name of its own")
            continue
        dtype = read_dtype(f"{section} '{name}'", entry, faults)
        dims = _read_dims(f"{section} '{name}'", entry, faults)
        optional = entry.get("optional") or False
        if not isinstance(optional, bool):
            faults.add(f"{section} '{name}': optional", repr(optional), "true or false")
        tensors[name] = Declared(TensorSpec(name, dtype, dims), bool(optional))
    return tensors


def without_rows(
    outputs: Mapping[str, Declared], passed: Container[str], faults: Faults
) -> dict[str, Declared]:
    """The outputs without the -1 for rows that their dims begin with; `passed` are left alone."""
    tensors = dict(outputs)
    for name, output in outputs.items():
        dims = output.spec.dims
        if name not in passed and dims[:1] == (UNKNOWN,):
            tensors[name] = replace(output, spec=replace(output.spec, dims=dims[1:]))
        elif name not in passed:
            faults.add(f"output '{name}': dims", list(dims), "-1 first, for the rows")
    return tensors


def read_entries(
    model_config: Mapping[str, object], section: str, things: str, faults: Faults
) -> list[tuple[str, Mapping[str, object]]]:
    """The mappings listed in `section`, each with its place; things: what they are, in words."""
    entries = model_config.get(section) or []
    if not _is_list_of_mappings(entries):
        faults.add(section, repr(entries), f"a list of {things}")
        return []
    return [(f"{section}[{index}]", entry) for index, entry in enumerate(entries)]


def read_dtype(place: str, entry: Mapping[str, object], faults: Faults) -> DType:
    """The `data_type` of an entry; after a fault FP32, so that reading can go on."""
    name = entry.get("data_type")
    try:
        return DType.of_config(str(name))
    except KeyError:
        known = ", ".join(member.config_name for member in DType)
        faults.add(f"{place}: data_type", repr(name), f"one of: {known}")
        return DType.FP32


def _read_dims(place: str, entry: Mapping[str, object], faults: Faults) -> tuple[int, ...]:
    """The dims as the model meets them: those of `reshape` where there is one."""
    reshape = entry.get("reshape")
    dims = reshape.get("shape", []) if isinstance(reshape, Mapping) else entry.get("dims", [])
    if isinstance(dims, list) and all(
        type(dim) is int and (dim > 0 or dim == UNKNOWN) for dim in dims
    ):
        return tuple(dims)
    faults.add(f"{place}: dims", repr(dims), "a list of sizes, each at least 1, or -1")
    return ()


def _is_list_of_mappings(value: object) -> TypeGuard[list[Mapping[str, object]]]:
    return isinstance(value, list) and all(isinstance(entry, Mapping) for entry in value)
