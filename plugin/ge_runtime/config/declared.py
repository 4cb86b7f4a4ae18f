"""Fields of Triton's model configuration other than `parameters`: tensors, rows and instances.

Reading does not stop at an error: `ConfigErrors` collects all of them.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from typing import TypeGuard

from ge_runtime.config.parameters import ConfigErrors, read_whole
from ge_runtime.specs import UNKNOWN, DType, TensorSpec


@dataclass(frozen=True, slots=True)
class DeclaredTensor:
    """A tensor as `input` or `output` declares it; dims of -1 are UNKNOWN."""

    spec: TensorSpec
    optional: bool
    """True if requests may lack it. Inputs only."""


def read_max_batch_size(model_config: Mapping[str, object], errors: ConfigErrors) -> int:
    """Return the declared max_batch_size, or 0."""
    value = model_config.get("max_batch_size", 0)
    return read_whole("max_batch_size", value, errors, least=0)


def read_instances(model_config: Mapping[str, object], errors: ConfigErrors) -> int:
    """Return how many instances of the model run on this host, at least 1."""
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
    """Return the tensors declared in `section` ("input" or "output"), by name."""
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
    """Remove the leading -1 for rows from the dims of all outputs that are not in `passed`."""
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
    """Return the mappings listed in `section`, each with its field.

    `things` is the word for them in the error if it is not such a list.
    """
    entries = model_config.get(section) or []
    if not _is_list_of_mappings(entries):
        errors.add(section, repr(entries), f"a list of {things}")
        return []
    return [(f"{section}[{index}]", entry) for index, entry in enumerate(entries)]


def read_dtype(field: str, entry: Mapping[str, object], errors: ConfigErrors) -> DType:
    """Return the `data_type` of an entry; FP32 after an error, so that reading goes on."""
    name = entry.get("data_type")
    try:
        return DType.of_config(str(name))
    except KeyError:
        known = ", ".join(member.config_name for member in DType)
        errors.add(f"{field}: data_type", repr(name), f"one of: {known}")
        return DType.FP32


def _read_dims(field: str, entry: Mapping[str, object], errors: ConfigErrors) -> tuple[int, ...]:
    """Return the dims that the model receives: those of `reshape` if there is one."""
    # Triton gives tensors to the model in the shape of `reshape`; `dims` is what clients send.
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
