"""What config.pbtxt declares apart from `parameters`: tensors, batch size, instances."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TypeGuard

from ge_runtime.config.faults import Faults
from ge_runtime.specs import UNKNOWN, DType, TensorSpec


def read_whole(place: str, value: object, faults: Faults, *, least: int) -> int:
    """A whole number of at least `least`, given as one or as text; else a fault, and `least`."""
    try:
        number = int(value) if isinstance(value, str) else value
    except ValueError:
        number = None
    if isinstance(number, int) and not isinstance(number, bool) and number >= least:
        return number
    faults.add(place, repr(value), f"a whole number of at least {least}")
    return least


def read_max_batch_size(model_config: Mapping[str, object], faults: Faults) -> int:
    """The declared max_batch_size, 0 if none."""
    value = model_config.get("max_batch_size", 0)
    return read_whole("max_batch_size", value, faults, least=0)


def read_instances(model_config: Mapping[str, object], faults: Faults) -> int:
    """How many instances of the model run on this host: at least 1."""
    groups = model_config.get("instance_group") or []
    if not _is_list_of_mappings(groups):
        faults.add("instance_group", repr(groups), "a list of groups")
        return 1
    instances = 0
    for index, group in enumerate(groups):
        place = f"instance_group[{index}]"
        count = read_whole(f"{place}: count", group.get("count", 1), faults, least=1)
        gpus = group.get("gpus") or []
        if not isinstance(gpus, list):
            faults.add(f"{place}: gpus", repr(gpus), "a list of device ids")
            gpus = []
        instances += count * max(1, len(gpus))  # a group has `count` instances on each device
    return max(1, instances)


def read_tensors(
    model_config: Mapping[str, object], section: str, faults: Faults, *, passed: Collection[str]
) -> tuple[TensorSpec, ...]:
    """The tensors declared in `section` ("input" or "output"); their dims of -1 are UNKNOWN.

    passed: those that no graph touches, which may therefore be BYTES.
    """
    entries = model_config.get(section) or []
    if not _is_list_of_mappings(entries):
        faults.add(section, repr(entries), "a list of tensors")
        return ()
    tensors: dict[str, TensorSpec] = {}
    for index, entry in enumerate(entries):
        name = entry.get("name")
        if not isinstance(name, str) or not name or name in tensors:
            faults.add(f"{section}[{index}]: name", repr(name), "a name of its own")
            continue
        if entry.get("optional"):
            faults.add(f"{section} '{name}'", "optional: true", "an input that is always sent")
        dtype = _read_dtype(f"{section} '{name}'", entry, faults, passed=name in passed)
        dims = _read_dims(f"{section} '{name}'", entry, faults)
        tensors[name] = TensorSpec(name, dtype, dims)
    return tuple(tensors.values())


def _read_dtype(place: str, entry: Mapping[str, object], faults: Faults, *, passed: bool) -> DType:
    """The declared type; after a fault FP32, so that reading can go on."""
    name = entry.get("data_type")
    try:
        dtype = DType.of_config(str(name))
    except KeyError:
        known = ", ".join(member.config_name for member in DType)
        faults.add(f"{place}: data_type", repr(name), f"one of: {known}")
        return DType.FP32
    if dtype is DType.BF16:
        faults.add(f"{place}: data_type", name, "a type that NumPy has, e.g. TYPE_FP32")
        return DType.FP32
    if dtype is DType.BYTES and not passed:
        faults.add(f"{place}: data_type", name, "numbers, the only elements a graph executes on")
        return DType.FP32
    return dtype


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
