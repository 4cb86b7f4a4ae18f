"""One configuration of npu_ge, made one of ge_runtime: text in, text out.

The text is edited, not written anew: all that is not converted stays as it was, comments too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ge_runtime.cli.backend import NAME
from ge_runtime.cli.config_pbtxt import Token, parse, tokens
from ge_runtime.cli.convert.gear_parameters import DeclaredDims, gear_parameters
from ge_runtime.cli.convert.npu_ge_parameters import SHAPES, ConversionReport, convert_parameters
from ge_runtime.config import ConfigErrors, RuntimeConfig
from ge_runtime.config.triton_config import read_instances, read_max_batch_size, read_tensors
from ge_runtime.errors import ConfigFault
from ge_runtime.specs import ROWS

_THEIRS: Final = "npu_ge"
_INSTANCES: Final = "instance_group"


@dataclass(frozen=True, slots=True)
class ConvertOptions:
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


def convert(name: str, text: str, options: ConvertOptions) -> Conversion:
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
    report = ConversionReport(options.drop)
    given = _texts(config, report)
    kept = convert_parameters(given, report)
    _name_cards(kept, options, report)
    if instances > 1:
        why = (
            "in npu_ge instances are threads that feed the engines, here each is a process with "
            "engines of its own"
        )
        cure = "leave it at one, with device_exec_blocks for engines side by side"
        report.refuse(_INSTANCES, f"{instances} instances", why, cure)
    made = {}
    if inputs and outputs:
        made = gear_parameters(
            inputs,
            outputs,
            _shape_options(given, report),
            report,
            batched=max_batch_size > 0,
            names=options.axes,
            limits=options.limits,
        )
        _note_sizes_without_gears(made, max_batch_size, report)
    else:
        why = "npu_ge reads them from the ONNX file, ge_runtime from config.pbtxt"
        report.require("input and output", "not both there", why, "declare them, with their dims")
    new = edit_config(
        text,
        texts={"backend": NAME},
        without=lambda field: field == _INSTANCES and _INSTANCES in report.used,
        keep=lambda key: key in kept and kept[key] == given.get(key),
        more={**{key: value for key, value in kept.items() if given.get(key) != value}, **made},
    )
    # Read as at load, but only if nothing is wrong so far: its errors would follow from that.
    problems = [str(problem) for problem in report.problems] or _refused(name, new)
    problems += [f"--drop {each}: found nothing to drop" for each in _unused(report)]
    return Conversion(new, report.notes, problems)


def _tensors(
    config: Mapping[str, object], section: str, faults: ConfigErrors
) -> list[DeclaredDims]:
    tensors = read_tensors(config, section, faults)
    return [DeclaredDims(tensor.spec.name, _sizes(tensor.spec.dims)) for tensor in tensors.values()]


def _sizes(dims: Sequence[object]) -> tuple[int, ...]:
    """The dims as numbers, which is all that config.pbtxt declares."""
    return tuple(dim for dim in dims if isinstance(dim, int))


def _texts(config: Mapping[str, object], report: ConversionReport) -> dict[str, str]:
    """The parameters, which are texts all of them."""
    entries = config.get("parameters")
    texts = {}
    for key, entry in entries.items() if isinstance(entries, Mapping) else ():
        value = entry.get("string_value") if isinstance(entry, Mapping) else None
        if isinstance(value, str):
            texts[str(key)] = value
        else:
            report.refuse(str(key), repr(entry), 'a parameter is value { string_value: "..." }')
    return texts


def _name_cards(kept: dict[str, str], options: ConvertOptions, report: ConversionReport) -> None:
    if options.device_ids is not None and "device_ids" in kept:
        why = "config.pbtxt names its cards"
        report.require("--device-ids", options.device_ids, why, "change device_ids there")
    if options.device_ids is not None:
        kept["device_ids"] = options.device_ids
    if "device_ids" in kept:
        return
    why = "npu_ge then uses every card it sees, ge_runtime those it is told"
    report.require("device_ids", "nothing", why, "say --device-ids, e.g. 0 or 0,1")


def _shape_options(
    given: Mapping[str, str], report: ConversionReport
) -> dict[str, tuple[str, str]]:
    """Option of GE that says which sizes there are: its parameter and value."""
    options: dict[str, tuple[str, str]] = {}
    for name, value in given.items():
        family, _, option = name.partition(".")
        if family in ("graph", "session") and option in SHAPES:
            other, same = options.setdefault(option, (name, value))
            if same != value:
                report.require(name, value, f"{other} says {same}", "leave one of the two")
    return options


def _note_sizes_without_gears(
    made: Mapping[str, str], max_batch_size: int, report: ConversionReport
) -> None:
    """Tell of what npu_ge computes with at any size, and a card here at the largest alone."""
    gears, limits = (
        {key.removeprefix(prefix): value for key, value in made.items() if key.startswith(prefix)}
        for prefix in ("gears.", "limit.")
    )
    geared = {axis for axes in gears for axis in axes.split(",")}
    largest = {ROWS: max_batch_size} | {axis: int(size) for axis, size in limits.items()}
    free = [f"{a} {size}" for a, size in largest.items() if size > 1 and a not in geared]
    if free:
        report.notes.append(
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


def _unused(report: ConversionReport) -> list[str]:
    return sorted({*report.dropped} - report.used)


_ENDS: Final = {"{": "}", "<": ">", "[": "]"}


@dataclass(frozen=True, slots=True)
class FieldValue:
    """A value of a field, or an entry of its list."""

    start: int
    end: int
    comma: int | None
    """Where the comma after it stands, in a list."""


@dataclass(frozen=True, slots=True)
class ConfigField:
    """A field of the message itself, not of messages within it."""

    name: str
    start: int
    end: int
    """After the separator that follows, if one does."""
    values: Sequence[FieldValue]


def edit_config(
    text: str,
    *,
    texts: Mapping[str, str],
    without: Callable[[str], bool],
    keep: Callable[[str], bool],
    more: Mapping[str, str],
) -> str:
    """The configuration with other fields and parameters.

    texts: field that is a text: its new one. without: whether a field goes. keep: whether the
    parameter of this key stays. more: parameters that are added at the end, as texts.
    """
    edits: list[tuple[int, int, str]] = []
    for field in _fields(text):
        if field.name in texts:
            value = field.values[0]
            edits.append((value.start, value.end, quoted(texts[field.name])))
        elif without(field.name):
            edits.append((*_line(text, field.start, field.end), ""))
        elif field.name == "parameters":
            kept = [keep(_key(text[each.start : each.end])) for each in field.values]
            edits += [(*_line(text, *span), "") for span in _removed(field, kept)]
    # From the end, so that places before an edit stay what they are.
    for start, end, new in sorted(edits, reverse=True):
        text = text[:start] + new + text[end:]
    if more and not text.endswith("\n"):
        text += "\n"
    lines = (
        f"parameters {{ key: {quoted(key)} value {{ string_value: {quoted(value)} }} }}\n"
        for key, value in more.items()
    )
    return text + "".join(lines)


def quoted(text: str) -> str:
    """The text as a configuration writes it."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _fields(text: str) -> Iterator[ConfigField]:
    """The fields of the message, in order. The text must be one that `parse` reads."""
    words = tokens(text)
    place = 0
    while words[place].kind != "end":
        name = words[place]
        place += 1
        if words[place].text == ":":
            place += 1
        values, place = _values(words, place)
        end = words[place - 1].end
        if words[place].text in (",", ";"):
            end = words[place].end
            place += 1
        yield ConfigField(name.text, name.start, end, values)


def _values(words: Sequence[Token], place: int) -> tuple[list[FieldValue], int]:
    """The values that begin at the token `place`, and the place after them."""
    if words[place].text != "[":
        after = _after(words, place)
        return [FieldValue(words[place].start, words[after - 1].end, None)], after
    values = []
    place += 1
    while words[place].text != "]":
        after = _after(words, place)
        comma = words[after].start if words[after].text == "," else None
        values.append(FieldValue(words[place].start, words[after - 1].end, comma))
        place = after + (comma is not None)
    return values, place + 1


def _after(words: Sequence[Token], place: int) -> int:
    """The place after the one value that begins at `place`."""
    if words[place].text in _ENDS:
        depth = 0
        while True:
            depth += words[place].text in _ENDS
            depth -= words[place].text in _ENDS.values()
            place += 1
            if depth == 0:
                return place
    if words[place].kind != "text":
        return place + 1
    while words[place].kind == "text":
        place += 1
    return place


def _key(entry: str) -> str:
    """Return the key of an entry of `parameters`, which is given with its braces."""
    entries = parse(f"parameters {entry}")["parameters"]
    return next(iter(entries)) if isinstance(entries, dict) else ""


def _removed(field: ConfigField, kept: Sequence[bool]) -> Iterator[tuple[int, int]]:
    """What goes of the field's text, if only some of its values are kept."""
    if not any(kept):
        yield field.start, field.end
        return
    for value, stays in zip(field.values, kept, strict=True):
        if not stays:
            yield value.start, value.end if value.comma is None else value.comma + 1
    # Protobuf takes no comma after the last entry of a list.
    last = max(index for index, stays in enumerate(kept) if stays)
    comma = field.values[last].comma
    if comma is not None and last + 1 < len(kept):
        yield comma, comma + 1


def _line(text: str, start: int, end: int) -> tuple[int, int]:
    """The same characters; with the line around them, if nothing else stands in it."""
    first = text.rfind("\n", 0, start) + 1
    last = text.find("\n", end)
    last = len(text) if last < 0 else last + 1
    if text[first:start].strip() or text[end:last].strip():
        return start, end
    return first, last
