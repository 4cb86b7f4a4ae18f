"""One configuration of npu_ge, made one of ge_runtime: text in, text out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ge_runtime.cli.backend import NAME
from ge_runtime.cli.convert.columns import Tensor
from ge_runtime.cli.convert.fields import edited
from ge_runtime.cli.convert.options import SHAPES, converted
from ge_runtime.cli.convert.problems import Told
from ge_runtime.cli.convert.sizes import sizes_of
from ge_runtime.cli.text_format import parse
from ge_runtime.config import ConfigErrors, RuntimeConfig
from ge_runtime.config.triton_config import read_instances, read_max_batch_size, read_tensors
from ge_runtime.errors import ConfigFault
from ge_runtime.specs import ROWS

_THEIRS: Final = "npu_ge"
_INSTANCES: Final = "instance_group"


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the user adds to the configuration."""

    axes: Mapping[str, Sequence[str]]
    """Tensor: names of the dims that its config leaves open; for outputs also relations."""
    limits: Mapping[str, int]
    device_ids: str | None
    drop: frozenset[str]
    """Names of what may be lost."""


@dataclass(frozen=True, slots=True)
class Conversion:
    """The new text, which counts only if there are no problems."""

    text: str
    notes: Sequence[str]
    problems: Sequence[str]


def convert(name: str, text: str, wishes: Wishes) -> Conversion:
    """The configuration `text` of the model `name`, as ge_runtime takes it.

    Raises ValueError if it is not in protobuf's text format, ConfigFault if it is none of npu_ge
    or its tensors cannot be read.
    """
    config = {"name": name, **parse(text)}
    faults = ConfigErrors(name)
    if config.get("backend") != _THEIRS:
        faults.add(
            "backend", repr(config.get("backend")), f"'{_THEIRS}': nothing else is converted"
        )
    max_batch_size = read_max_batch_size(config, faults)
    inputs, outputs = (_tensors(config, section, faults) for section in ("input", "output"))
    instances = read_instances(config, faults)
    faults.raise_any()
    told = Told(wishes.drop)
    given = _texts(config, told)
    kept = converted(given, told)
    _name_cards(kept, wishes, told)
    if instances > 1:
        why = (
            "in npu_ge instances are threads that feed the engines, here each is a process with "
            "engines of its own"
        )
        cure = "leave it at one, with device_exec_blocks for engines side by side"
        told.refuse(_INSTANCES, f"{instances} instances", why, cure)
    made = {}
    if inputs and outputs:
        made = sizes_of(
            inputs,
            outputs,
            _shape_options(given, told),
            told,
            batched=max_batch_size > 0,
            names=wishes.axes,
            limits=wishes.limits,
        )
        _note_sizes_without_gears(made, max_batch_size, told)
    else:
        why = "npu_ge reads them from the ONNX file, ge_runtime from config.pbtxt"
        told.demand("input and output", "not both there", why, "declare them, with their dims")
    new = edited(
        text,
        texts={"backend": NAME},
        without=lambda field: field == _INSTANCES and _INSTANCES in told.used,
        keep=lambda key: key in kept and kept[key] == given.get(key),
        more={**{key: value for key, value in kept.items() if given.get(key) != value}, **made},
    )
    problems = [str(problem) for problem in told.problems] or _refused(name, new)
    problems += [f"--drop {each}: found nothing to drop" for each in _unused(told)]
    return Conversion(new, told.notes, problems)


def _tensors(config: Mapping[str, object], section: str, faults: ConfigErrors) -> list[Tensor]:
    tensors = read_tensors(config, section, faults)
    return [Tensor(tensor.spec.name, _sizes(tensor.spec.dims)) for tensor in tensors.values()]


def _sizes(dims: Sequence[object]) -> tuple[int, ...]:
    """The dims as numbers, which is all that config.pbtxt declares."""
    return tuple(dim for dim in dims if isinstance(dim, int))


def _texts(config: Mapping[str, object], told: Told) -> dict[str, str]:
    """The parameters, which are texts all of them."""
    entries = config.get("parameters")
    texts = {}
    for key, entry in entries.items() if isinstance(entries, Mapping) else ():
        value = entry.get("string_value") if isinstance(entry, Mapping) else None
        if isinstance(value, str):
            texts[str(key)] = value
        else:
            told.refuse(str(key), repr(entry), 'a parameter is value { string_value: "..." }')
    return texts


def _name_cards(kept: dict[str, str], wishes: Wishes, told: Told) -> None:
    if wishes.device_ids is not None and "device_ids" in kept:
        why = "config.pbtxt names its cards"
        told.demand("--device-ids", wishes.device_ids, why, "change device_ids there")
    if wishes.device_ids is not None:
        kept["device_ids"] = wishes.device_ids
    if "device_ids" in kept:
        return
    why = "npu_ge then uses every card it sees, ge_runtime those it is told"
    told.demand("device_ids", "nothing", why, "say --device-ids, e.g. 0 or 0,1")


def _shape_options(given: Mapping[str, str], told: Told) -> dict[str, tuple[str, str]]:
    """Option of GE that says which sizes there are: its parameter and value."""
    options: dict[str, tuple[str, str]] = {}
    for name, value in given.items():
        family, _, option = name.partition(".")
        if family in ("graph", "session") and option in SHAPES:
            other, same = options.setdefault(option, (name, value))
            if same != value:
                told.demand(name, value, f"{other} says {same}", "leave one of the two")
    return options


def _note_sizes_without_gears(made: Mapping[str, str], max_batch_size: int, told: Told) -> None:
    """Tell of what npu_ge computes with at any size, and a card here at the largest alone."""
    gears, limits = (
        {key.removeprefix(prefix): value for key, value in made.items() if key.startswith(prefix)}
        for prefix in ("gears.", "limit.")
    )
    geared = {axis for axes in gears for axis in axes.split(",")}
    largest = {ROWS: max_batch_size} | {axis: int(size) for axis, size in limits.items()}
    free = [f"{a} {size}" for a, size in largest.items() if size > 1 and a not in geared]
    if free:
        told.notes.append(
            f"{', '.join(free)}: without gears an .om computes with no other size, and requests "
            "are padded to it; `ge-runtime gears` chooses some"
        )


def _refused(name: str, text: str) -> list[str]:
    """What ge_runtime has against the new configuration."""
    try:
        RuntimeConfig.parse({"name": name, **parse(text)}, cores=1)
    except ConfigFault as fault:
        return list(fault.faults)
    return []


def _unused(told: Told) -> list[str]:
    return sorted({*told.dropped} - told.used)
