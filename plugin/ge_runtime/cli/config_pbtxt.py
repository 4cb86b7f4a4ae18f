"""Read config.pbtxt of a model folder without a server, and edit it as text.

protobuf's text format reader reads the file with Triton's schema, as in the reference server. The
schema is `model_config.binpb`, a serialized FileDescriptorProto of NVIDIA's `model_config.proto`
(release 2.73, BSD-3-Clause), so that neither tritonclient nor grpcio has to be installed. Edits
keep comments and formatting.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import (
    Callable,
    Collection,
    Iterator,
    Mapping,
    MutableMapping,
    MutableSequence,
    Sequence,
)
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ge_runtime.config import RuntimeConfig
from ge_runtime.errors import ConfigFault, RuntimeFault
from ge_runtime.specs import DType

if TYPE_CHECKING:
    from google.protobuf.descriptor import FieldDescriptor
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message import Message


_MAX_NAMES: Final = 5
_SCHEMA: Final = Path(__file__).with_name("model_config.binpb")
_UNKNOWN_FIELD: Final = re.compile(
    r'Message type "(?P<message>[\w.]+)" has no field named "(?P<field>\w+)"'
)


def config_file(path: Path) -> Path:
    """Return the config.pbtxt of the model folder `path`, or `path` if it is a file."""
    return path / "config.pbtxt" if path.is_dir() else path


def ensure_model(folder: Path) -> None:
    """Check that `folder` holds a model with a graph.

    Raises:
        RuntimeFault: There is no model. The text lists the models below `folder`, if any.
        ConfigFault: config.pbtxt cannot be read, or the model is an ensemble.
    """
    if not config_file(folder).is_file() or not folder.is_dir():
        found = "no config.pbtxt" if folder.is_dir() else "a file" if folder.exists() else "nothing"
        models = sorted(file.parent.name for file in folder.glob("*/config.pbtxt"))
        hint = ""
        if models:
            more = ", ..." if len(models) > _MAX_NAMES else ""
            hint = f"; it holds models: {', '.join(models[:_MAX_NAMES])}{more}"
        elif config_file(folder.parent).is_file() and folder.exists():
            hint = f"; that is {folder.parent}"
        raise RuntimeFault(f"{folder}: found {found}, expected the folder of a model{hint}")
    config = read_model_config(folder)
    if config.get("platform") == "ensemble":
        fault = "platform: found ensemble, expected a model with a graph of its own"
        raise ConfigFault(str(config["name"]), [fault])


def read_model_config(path: Path) -> dict[str, object]:
    """Return the configuration of a model in the form that Triton passes to `initialize`.

    `path` is config.pbtxt or its folder. The result has the fields that `parse` returns. `name`
    defaults to the name of the folder; other defaults are not filled in.

    Raises:
        ConfigFault: The file is not a Triton model configuration in protobuf's text format.
    """
    file = config_file(path)
    folder = file.resolve().parent.name
    try:
        return {"name": folder, **parse(file.read_text(encoding="utf-8"))}
    except ValueError as error:
        raise ConfigFault(folder, [f"{file.name}: {error}"]) from error


def read_graph_config(path: Path) -> dict[str, object]:
    """Return the configuration of a model's graph, as `read_model_config` does.

    The graph has the configuration of the model, unless the model streams tokens. Raises
    RuntimeFault if the model streams tokens and its parameters for this are wrong.
    """
    config = read_model_config(path)
    parameters = config.get("parameters")
    if not isinstance(parameters, Mapping) or not any(
        key.startswith("generate.") for key in parameters
    ):
        return config
    # Imported only for models that stream tokens.
    from ge_runtime.adapters.generation import graph_config

    return graph_config(config)[0]


def read_runtime_config(path: Path) -> RuntimeConfig:
    """Return the runtime's settings in the configuration of the model at `path`.

    The model's code is not run. It is assumed to compute the outputs of type BYTES, because no
    graph produces them. Raises ConfigFault.
    """
    config = read_graph_config(path)
    # Read before RuntimeConfig.parse, which needs this list to accept an output of BYTES.
    outputs, parameters = config.get("output"), config.get("parameters")
    passes = parameters if isinstance(parameters, Mapping) else {}
    derived = [
        str(output.get("name"))
        for output in (outputs if isinstance(outputs, list) else [])
        if isinstance(output, Mapping)
        and output.get("data_type") == DType.BYTES.config_name
        and f"pass.{output.get('name')}" not in passes
    ]
    return RuntimeConfig.parse(config, cores=1, derived=derived)


def parse(text: str) -> dict[str, object]:
    """Parse a model configuration in protobuf's text format.

    Returns the fields that are set, by their names: enum values as names, messages as dicts, maps
    as dicts in the order of their keys, repeated fields as lists.

    Raises:
        ValueError: Malformed text, or a field that Triton's schema does not have. The message
            starts with line and column, counted from 1.
    """
    from google.protobuf import message_factory, text_format

    descriptor = _schema().FindMessageTypeByName("inference.ModelConfig")
    config = message_factory.GetMessageClass(descriptor)()
    try:
        text_format.Parse(text, config)
    except text_format.ParseError as error:
        line, column = error.GetLine(), error.GetColumn()
        reason = str(error).removeprefix(f"{line}:{column} : ")
        message = f"line {line}, column {column}: {reason}{_suggestion(reason)}"
        raise ValueError(message) from error
    return _fields(config)


@cache
def _schema() -> DescriptorPool:
    from google.protobuf import descriptor_pb2
    from google.protobuf.descriptor_pool import DescriptorPool

    # A pool of its own: the default pool refuses the file's name once tritonclient has registered
    # its schema, unless both schemas are of one release.
    pool = DescriptorPool()
    pool.Add(descriptor_pb2.FileDescriptorProto.FromString(_SCHEMA.read_bytes()))
    return pool


def _suggestion(reason: str) -> str:
    match = _UNKNOWN_FIELD.search(reason)
    if match is None:
        return ""
    message = _schema().FindMessageTypeByName(match["message"])
    close = difflib.get_close_matches(match["field"], [field.name for field in message.fields])
    return f" Did you mean '{close[0]}'?" if close else ""


def _fields(message: Message) -> dict[str, object]:
    return {field.name: _value(field, value) for field, value in message.ListFields()}


def _value(field: FieldDescriptor, value: Any) -> object:  # noqa: ANN401 - a field has any type
    if isinstance(value, MutableMapping):
        item_field = field.message_type.fields_by_name["value"]
        # protobuf keeps no order. Keys are strings in the JSON that Triton passes to models.
        return {str(key): _value(item_field, value[key]) for key in sorted(value)}
    if isinstance(value, MutableSequence):
        return [_value(field, item) for item in value]
    if field.message_type is not None:
        return _fields(value)
    if field.enum_type is not None:
        named = field.enum_type.values_by_number.get(value)
        return named.name if named is not None else value
    return value


# -- tokens, for edits of the text ----------------------------------------------------------------

_TOKEN: Final = re.compile(
    r"""(?P<blank>\s+|\#[^\n]*)
      | (?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
      | (?P<mark>[{}<>\[\]:,;])
      | (?P<word>[^\s\#"'{}<>\[\]:,;]+)""",
    re.VERBOSE,
)


class Token(NamedTuple):
    """A token of config.pbtxt and its place in the text."""

    kind: str
    """"text", "word", "mark", or "end" for the end of the text."""
    text: str
    """The token as written; a string with its quotes."""
    start: int
    end: int
    """The offset after the last character."""


def tokens(text: str) -> list[Token]:
    """Split a text that `parse` accepts into tokens; the last token marks the end."""
    found = [
        Token(str(match.lastgroup), match[0], match.start(), match.end())
        for match in _TOKEN.finditer(text)
        if match.lastgroup != "blank"
    ]
    return [*found, Token("end", "", len(text), len(text))]


_ENDS: Final = {"{": "}", "<": ">", "[": "]"}


@dataclass(frozen=True, slots=True)
class FieldValue:
    """The span of a value, or of an entry of a list."""

    start: int
    end: int
    comma: int | None
    """Position of the comma after an entry of a list."""


@dataclass(frozen=True, slots=True)
class ConfigField:
    """The span of a top-level field."""

    name: str
    start: int
    end: int
    """The end, including a separator."""
    values: Sequence[FieldValue]


def edit_config(
    text: str,
    *,
    values: Mapping[str, str],
    without: Callable[[str], bool],
    keep: Callable[[str], bool],
    more: Mapping[str, str],
) -> str:
    """Change fields and parameters in the text of a configuration that `parse` accepts.

    `values` has new values of fields, as text. `without` returns whether to remove a field, and
    `keep` whether to keep the parameter with a key. `more` has parameters to add at the end.
    """
    edits: list[tuple[int, int, str]] = []
    for field in _field_spans(text):
        if field.name in values:
            value = field.values[0]
            edits.append((value.start, value.end, values[field.name]))
        elif without(field.name):
            edits.append((*_line(text, field.start, field.end), ""))
        elif field.name == "parameters":
            kept = [keep(_key(text[each.start : each.end])) for each in field.values]
            edits += [(*_line(text, *span), "") for span in _removed(field, kept)]
    # From the end, because an edit moves all positions after it.
    for start, end, new in sorted(edits, reverse=True):
        text = text[:start] + new + text[end:]
    if more and not text.endswith("\n"):
        text += "\n"
    lines = (
        f"parameters {{ key: {quoted(key)} value {{ string_value: {quoted(value)} }} }}\n"
        for key, value in more.items()
    )
    return text + "".join(lines)


def edit_message(text: str, name: str, *, without: Collection[str], more: Sequence[str]) -> str:
    """Return the value of the message field `name` with some fields removed and others added.

    `more` are fields to add at the end, as text. A missing field is an empty message.
    """
    own = next((each.values[0] for each in _field_spans(text) if each.name == name), None)
    content = "" if own is None else text[own.start + 1 : own.end - 1]
    spans = [(field.start, field.end) for field in _field_spans(content) if field.name in without]
    for start, end in reversed([_line(content, *span) for span in spans]):
        content = content[:start] + content[end:]
    return f"{{{content.rstrip()} {' '.join((*more, '}'))}"


def quoted(text: str) -> str:
    """Return a string literal of protobuf's text format."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _field_spans(text: str) -> Iterator[ConfigField]:
    """Yield the top-level fields of a text that `parse` accepts."""
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
    """Return the values that start at token `place`, and the index of the token after them."""
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
    """Return the index of the token after the value that starts at `place`."""
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
    """Yield the spans to remove so that only the kept values remain."""
    if not any(kept):
        yield field.start, field.end
        return
    for value, stays in zip(field.values, kept, strict=True):
        if not stays:
            yield value.start, value.end if value.comma is None else value.comma + 1
    # protobuf refuses a comma after the last entry of a list.
    last = max(index for index, stays in enumerate(kept) if stays)
    comma = field.values[last].comma
    if comma is not None and last + 1 < len(kept):
        yield comma, comma + 1


def _line(text: str, start: int, end: int) -> tuple[int, int]:
    """Extend a span to whole lines if the lines contain nothing else."""
    first = text.rfind("\n", 0, start) + 1
    last = text.find("\n", end)
    last = len(text) if last < 0 else last + 1
    if text[first:start].strip() or text[end:last].strip():
        return start, end
    return first, last
