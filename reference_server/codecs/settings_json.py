"""Settings of the log and of tracing: the JSON of the HTTP endpoints and the values in it.

Members are read one by one, as they are asked for: what stands before a fault has been applied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import orjson

from reference_server.codecs import rapid_json
from reference_server.codecs.rapid_json_reader import JsonValue
from reference_server.core.errors import invalid_arg, unavailable
from reference_server.core.numerals import leading_integer

LogValue = bool | int | str
#: The values of one trace setting; None clears it.
TraceChange = Sequence[str] | None


def encode_log_settings(settings: Mapping[str, LogValue]) -> bytes:
    """The body of a reply."""
    return orjson.dumps(settings)


def read_log_settings(body: memoryview) -> Iterator[tuple[str, LogValue]]:
    """The changes in a request's body, in the order in which Triton looks for them.

    Raises ServerError; what is none of the settings, or null, is left out.
    """
    fields = _fields(rapid_json.loads(body))
    for name, read in _LOG_READERS.items():
        value = fields.get(name)
        if value is not None:
            yield name, read(value)


def _read_log_format(value: JsonValue) -> str:
    text = rapid_json.as_string(value)
    if text not in ("default", "ISO8601"):
        # Over gRPC it is another code and another text.
        raise unavailable(f"invalid argument for --log_format, got: {text}")
    return text


_LOG_READERS: dict[str, Callable[[JsonValue], LogValue]] = {
    "log_file": lambda value: "",  # any value is refused
    "log_info": rapid_json.as_bool,
    "log_warning": rapid_json.as_bool,
    "log_error": rapid_json.as_bool,
    "log_verbose_level": rapid_json.as_uint64,
    "log_format": _read_log_format,
}


def encode_trace_settings(settings: Mapping[str, Sequence[str]]) -> bytes:
    """The body of a reply: the levels are a list, all others one string."""
    return orjson.dumps(
        {
            name: list(values) if name == "trace_level" else values[0]
            for name, values in settings.items()
        }
    )


def read_trace_settings(body: memoryview) -> Iterator[tuple[str, TraceChange]]:
    """The changes in a request's body, in the order in which Triton looks for them.

    Raises ServerError; what is none of the settings is left out.
    """
    fields = _fields(rapid_json.loads(body))
    for name, read in _TRACE_READERS.items():
        if name in fields:
            value = fields[name]
            yield name, None if value is None else read(value)


def _read_levels(value: JsonValue) -> list[str]:
    return [rapid_json.as_string(word) for word in rapid_json.as_array(value)]


def _read_text(value: JsonValue) -> list[str]:
    return [rapid_json.as_string(value)]


def _read_count(value: JsonValue) -> list[str]:
    (text,) = _read_text(value)
    number = leading_integer(text)
    if number is not None and -(2**31) <= number < -1:
        # Over gRPC a space stands before the number.
        raise invalid_arg(f"Unable to parse 'trace_count'. Expecting value >= -1, got:{text}")
    return [text]


_TRACE_READERS: dict[str, Callable[[JsonValue], list[str]]] = {
    "trace_file": lambda value: [],  # any value is refused
    "trace_level": _read_levels,
    "trace_rate": _read_text,
    "trace_count": _read_count,
    "log_frequency": _read_text,
}


def _fields(value: JsonValue) -> dict[str, JsonValue]:
    """The members of an object; anything else has none."""
    return value if isinstance(value, dict) else {}
