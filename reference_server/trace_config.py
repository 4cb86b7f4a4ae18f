"""The option `--trace-config`, in Triton's spelling: its values to TraceOptions."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Sequence

from reference_server.core.numerals import leading_integer
from reference_server.options import TraceOptions

#: What the words for a level mean; two are older names.
_LEVELS = {
    "OFF": frozenset[str](),
    "TIMESTAMPS": frozenset({"TIMESTAMPS"}),
    "TENSORS": frozenset({"TENSORS"}),
    "MIN": frozenset({"TIMESTAMPS"}),
    "MAX": frozenset({"TIMESTAMPS"}),
}
#: All settings that mean something.
NAMES = frozenset({"level", "rate", "count", "mode", "triton,file", "triton,log-frequency"})


def setting(text: str) -> tuple[str, str]:
    """The name and the value in `<setting>=<value>` or `<mode>,<setting>=<value>`."""
    name, _, value = text.partition("=")
    mode, comma, key = name.rpartition(",")
    if not key or not value:
        raise ArgumentTypeError(
            "--trace-config option format is '<setting>=<value>' or '<mode>,<setting>=<value>'. "
            f"Got {text}"
        )
    if key == "mode" and not comma:
        mode, comma = value, ","
    if comma and mode.lower() == "opentelemetry":
        raise ArgumentTypeError(
            "trace mode 'opentelemetry' is not served by the reference server, expected 'triton'"
        )
    if comma and mode.lower() != "triton":
        raise ArgumentTypeError(
            f"invalid value for trace mode option: {mode.lower()}. Available options are "
            '"triton" and "opentelemetry"'
        )
    if name == "level" and value.upper() not in _LEVELS:
        raise ArgumentTypeError(f"invalid value for trace level option: {value.lower()}")
    if name in ("rate", "count", "triton,log-frequency"):
        number = leading_integer(value)
        if number is None:
            raise ArgumentTypeError(f"Invalid option value. Got {value}")
        if not -(2**31) <= number < 2**31:
            raise ArgumentTypeError(f"Provided option value is out of bound. Got {value}")
        value = str(number)
    return name, value


def options(settings: Sequence[tuple[str, str]]) -> TraceOptions:
    """What the settings say together; as in Triton, the last of each counts, and levels add up."""
    last = dict(settings)
    levels = [_LEVELS[value.upper()] for name, value in settings if name == "level"]
    return TraceOptions(
        file=last.get("triton,file", ""),
        levels=frozenset[str]().union(*levels),
        rate=int(last.get("rate", "1000")) % 2**32,
        count=int(last.get("count", "-1")),
        log_frequency=int(last.get("triton,log-frequency", "0")) % 2**32,
    )
