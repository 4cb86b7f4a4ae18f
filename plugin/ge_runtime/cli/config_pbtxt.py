"""Reads config.pbtxt of a model folder without a server.

protobuf's text format reader does it with Triton's schema, as the reference server does. The schema
is `model_config.binpb`, a serialized FileDescriptorProto of NVIDIA's `model_config.proto` (release
2.73, BSD-3-Clause), so that neither tritonclient nor grpcio has to be installed.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, MutableMapping, MutableSequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ge_runtime.config import RuntimeConfig
from ge_runtime.errors import ConfigFault, RuntimeFault
from ge_runtime.specs import DType

if TYPE_CHECKING:  # so that commands that read no configuration run without protobuf
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

    Args:
        path: The model's folder, or its config.pbtxt.

    Returns:
        The fields that config.pbtxt sets, as `parse` returns them. `name` defaults to the name of
        the folder; other defaults are not filled in.

    Raises:
        ConfigFault: The file is not a Triton model configuration in protobuf's text format.
        OSError: The file cannot be opened.
    """
    file = config_file(path)
    folder = file.resolve().parent.name
    try:
        return {"name": folder, **parse(file.read_text(encoding="utf-8"))}
    except ValueError as error:
        raise ConfigFault(folder, [f"{file.name}: {error}"]) from error


def read_runtime_config(path: Path) -> RuntimeConfig:
    """Return the runtime's settings in the configuration of the model at `path`.

    The model's code, which may compute further outputs, is not run. Outputs of type BYTES are taken
    for such outputs, because no graph produces them.

    Raises:
        ConfigFault: The configuration cannot be read or is not valid.
        OSError: The file cannot be opened.
    """
    config = read_model_config(path)
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

    Returns:
        The fields that are set, by their names: enum values as names, messages as dicts, maps as
        dicts in the order of their keys, repeated fields as lists.

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
    # its schema, unless both are of one release.
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
    """Split a text that `parse` accepts into tokens; the last one is the end."""
    found = [
        Token(str(match.lastgroup), match[0], match.start(), match.end())
        for match in _TOKEN.finditer(text)
        if match.lastgroup != "blank"
    ]
    return [*found, Token("end", "", len(text), len(text))]
