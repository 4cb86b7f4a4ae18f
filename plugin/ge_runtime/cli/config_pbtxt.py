"""config.pbtxt of a model folder, read without a server and without protobuf.

Of Triton's schema it is known only which of the fields that ge_runtime reads are lists or maps,
and the names of fields, to tell slips such as `max_batchsize`. All else is as it is written: names
of enums as text, numbers, truths, messages as mappings, a list where a field occurs several times.
Whoever reads a field checks what is in it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from ge_runtime.config import RuntimeConfig
from ge_runtime.errors import ConfigFault, RuntimeFault
from ge_runtime.specs import DType

_MOST_NAMES: Final = 5


def config_file(path: Path) -> Path:
    """The config.pbtxt that is at `path`, or in the model's folder there."""
    return path / "config.pbtxt" if path.is_dir() else path


def ensure_model(folder: Path) -> None:
    """Raises RuntimeFault, with where a model may be, unless one with a graph is in `folder`.

    Raises ConfigFault if its config.pbtxt cannot be read.
    """
    if not config_file(folder).is_file() or not folder.is_dir():
        found = "no config.pbtxt" if folder.is_dir() else "a file" if folder.exists() else "nothing"
        models = sorted(file.parent.name for file in folder.glob("*/config.pbtxt"))
        hint = ""
        if models:
            more = ", ..." if len(models) > _MOST_NAMES else ""
            hint = f"; it holds models: {', '.join(models[:_MOST_NAMES])}{more}"
        elif config_file(folder.parent).is_file() and folder.exists():
            hint = f"; that is {folder.parent}"
        raise RuntimeFault(f"{folder}: found {found}, expected the folder of a model{hint}")
    config = read_model_config(folder)
    if config.get("platform") == "ensemble":
        fault = "platform: found ensemble, expected a model with a graph of its own"
        raise ConfigFault(str(config["name"]), [fault])


def read_model_config(path: Path) -> dict[str, object]:
    """The mapping that Triton hands to the model whose folder, or config.pbtxt, is at `path`.

    Fields that config.pbtxt leaves out are left out, save `name`, which is then the folder's.
    Raises ConfigFault if it is not in protobuf's text format, or nearly names a field of Triton's;
    OSError if there is none.
    """
    file = config_file(path)
    folder = file.resolve().parent.name
    try:
        config = {"name": folder, **parse(file.read_text(encoding="utf-8"))}
    except ValueError as error:
        raise ConfigFault(folder, [f"{file.name}: {error}"]) from error
    if faults := misspelled_fields(config):
        raise ConfigFault(folder, [f"{file.name}: {fault}" for fault in faults])
    return config


def read_runtime_config(path: Path) -> RuntimeConfig:
    """What that configuration says to the runtime.

    Which outputs the model's own code makes is said in its code, which is not run: those of BYTES
    are taken to be such, as no graph makes them. Raises ConfigFault, or OSError, as above.
    """
    config = read_model_config(path)
    # Looked at before it is parsed: whether an output of BYTES is an error depends on this.
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


# -- slips in the names of fields ---------------------------------------------------------------

KNOWN_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "": (
        *("name", "platform", "backend", "runtime", "version_policy", "max_batch_size", "input"),
        *("output", "batch_input", "batch_output", "optimization", "dynamic_batching"),
        *("sequence_batching", "ensemble_scheduling", "instance_group", "metric_tags"),
        *("default_model_filename", "cc_model_filenames", "parameters", "model_warmup"),
        *("model_operations", "model_transaction_policy", "model_repository_agents"),
        *("response_cache", "model_metrics"),
    ),
    "input": (
        *("name", "data_type", "format", "dims", "reshape", "is_shape_tensor", "optional"),
        *("allow_ragged_batch", "is_non_linear_format_io"),
    ),
    "output": (
        *("name", "data_type", "dims", "reshape", "label_filename", "is_shape_tensor"),
        "is_non_linear_format_io",
    ),
    "instance_group": (
        *("name", "kind", "count", "rate_limiter", "gpus", "secondary_devices", "profile"),
        *("passive", "host_policy"),
    ),
}
"""The messages that models on ge_runtime write, by the field that holds them, and what is in them;
"" is the whole. As in model_config.proto of tritonserver 2.51."""

_CLOSE_MATCH: Final = 0.8
"""How much of two names has to agree."""


def misspelled_fields(config: Mapping[str, object]) -> list[str]:
    """A fault for each name that is nearly one of Triton's. config: of `parse`."""
    faults = list(_within("", config))
    for field in filter(None, KNOWN_FIELDS):
        messages = config.get(field)
        for place, message in enumerate(messages if isinstance(messages, list) else []):
            if isinstance(message, Mapping):
                faults += _within(field, message, f"{field}[{place}]: ")
    return faults


def _within(field: str, message: Mapping[str, object], place: str = "") -> Iterator[str]:
    known = KNOWN_FIELDS[field]
    for name in message:
        near = difflib.get_close_matches(name, known, n=1, cutoff=_CLOSE_MATCH)
        if near and name not in known:
            yield f"{place}found no field '{name}', expected '{near[0]}'"


# -- protobuf's text format ---------------------------------------------------------------------

_LISTS: Final = (
    "input",
    "output",
    "batch_input",
    "source_input",
    "target_name",
    "dims",
    "shape",
    "instance_group",
    "gpus",
)
"""Repeated fields of the schema: lists even where the text has one value."""
_MAP: Final = "parameters"
"""Each entry is a message of `key` and `value`."""

_TOKEN: Final = re.compile(
    r"""(?P<blank>\s+|\#[^\n]*)
      | (?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
      | (?P<number>[+-]?(?:0[xX][0-9a-fA-F]+|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)(?!\w))
      | (?P<word>[A-Za-z_]\w*)
      | (?P<mark>[{}<>\[\]:,;])""",
    re.VERBOSE | re.ASCII,
)
_OCTAL: Final = re.compile(r"[+-]?0\d")
_ESCAPE: Final = re.compile(r"\\(.)")
_ESCAPED: Final = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "'": "'", "\\": "\\"}
_TRUTHS: Final = {"true": True, "false": False}
_ENDS: Final = {"{": "}", "<": ">"}


class Token(NamedTuple):
    """A word, value or mark, and where it stands."""

    kind: str
    """"text", "number", "word", "mark", or "end" for the end of the text."""
    text: str
    """As it is written; a text with its quotes."""
    line: int
    """Counted from 1."""
    start: int
    end: int
    """The characters it takes, from `start` to before `end`."""


def tokens(text: str) -> list[Token]:
    """All tokens, the end of the text last. Raises ValueError where there is none."""
    found: list[Token] = []
    place, line = 0, 1
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            raise ValueError(f"line {line}: found {text[place]!r}, expected a field or value")
        kind = str(match.lastgroup)
        if kind != "blank":
            found.append(Token(kind, match[0], line, place, match.end()))
        line += match[0].count("\n")
        place = match.end()
    found.append(Token("end", "", line, place, place))
    return found


def parse(text: str) -> dict[str, object]:
    """The message that `text` writes. Raises ValueError with line, found and expected."""
    reader = _Reader(text)
    message = reader.message(end="")
    reader.take("")
    return message


class _Reader:
    """Goes through the tokens of a text, once."""

    def __init__(self, text: str) -> None:
        self._tokens = tokens(text)
        self._next = 0

    def message(self, end: str) -> dict[str, object]:
        """The fields up to the token `end`, which is left."""
        fields: dict[str, list[object]] = {}
        while self._word not in (end, ""):
            kind, name, line, *_ = self._tokens[self._next]
            if kind != "word":
                raise ValueError(f"line {line}: found {name!r}, expected the name of a field")
            self._next += 1
            fields.setdefault(name, []).extend(self._values())
            self._skip(",;")
        return {name: _field(name, values) for name, values in fields.items()}

    def take(self, word: str) -> None:
        """Move on from the token `word`. Raises ValueError if another one is next."""
        if self._word != word:
            raise self._fault(f"'{word}'" if word else "the end")
        self._next += 1

    def _values(self) -> list[object]:
        """What follows the name of a field: one value, or a list of them in brackets."""
        colon = self._skip(":")
        if self._word != "[":
            return [self._value(colon=colon)]
        self.take("[")
        values: list[object] = []
        while self._word != "]":
            values.append(self._value(colon=True))
            if not self._skip(",") and self._word != "]":
                raise self._fault("',' or ']'")
        self.take("]")
        return values

    def _value(self, *, colon: bool) -> object:
        """colon: whether one came before; values other than messages need it."""
        kind, word, *_ = self._tokens[self._next]
        if word in _ENDS:
            self.take(word)
            message = self.message(_ENDS[word])
            self.take(_ENDS[word])
            return message
        if not colon:
            raise self._fault("':' or '{'")
        if kind == "text":
            return self._text()
        if kind == "number":
            try:
                number = _number(word)
            except ValueError:
                raise self._fault("digits from 0 to 7: after a leading 0 it is octal") from None
            self._next += 1
            return number
        if kind == "word":
            self._next += 1
            return _TRUTHS.get(word, word)
        raise self._fault("a value")

    def _text(self) -> str:
        """One text, of all parts that stand side by side."""
        parts = []
        while self._tokens[self._next].kind == "text":
            parts.append(_ESCAPE.sub(self._unescaped, self._word[1:-1]))
            self._next += 1
        return "".join(parts)

    def _unescaped(self, match: re.Match[str]) -> str:
        if match[1] not in _ESCAPED:
            raise self._fault("a text whose escapes are among \\n \\t \\r \\\" \\' \\\\")
        return _ESCAPED[match[1]]

    def _skip(self, marks: str) -> bool:
        """Move on from one of `marks`, if one is next."""
        found = self._word != "" and self._word in marks
        self._next += found
        return found

    @property
    def _word(self) -> str:
        return self._tokens[self._next].text

    def _fault(self, expected: str) -> ValueError:
        _, word, line, *_ = self._tokens[self._next]
        found = repr(word) if word else "the end"
        return ValueError(f"line {line}: found {found}, expected {expected}")


def _field(name: str, values: list[object]) -> object:
    if name == _MAP:
        entries = [value if isinstance(value, Mapping) else {} for value in values]
        return {str(entry.get("key", "")): entry.get("value", {}) for entry in entries}
    return values if name in _LISTS or len(values) != 1 else values[0]


def _number(word: str) -> int | float:
    if "x" in word.lower():
        return int(word, 16)
    if _OCTAL.match(word):
        return int(word, 8)
    try:
        return int(word)
    except ValueError:
        return float(word)
