"""The Python backend's settings: which host runs a model, and how processes are looked after."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from reference_server.backends.process_host.instance import Supervision
from reference_server.core.errors import ServerError, invalid_arg
from reference_server.core.numerals import leading_integer


class Host(enum.Enum):
    """Where a model runs."""

    INLINE = "inline"
    PROCESS = "process"


@dataclass(frozen=True, slots=True)
class PythonSettings:
    """What `--backend-config=python,...` says, checked."""

    host: Host = Host.INLINE
    supervision: Supervision = field(default_factory=Supervision)

    def host_of(self, parameter: str) -> Host:
        """Where a model runs; `parameter` is its own choice, if it has one. Raises ServerError."""
        return _host("EXECUTION_HOST", parameter) if parameter else self.host


#: Triton's own settings of numbers: the least value, and what is said of smaller ones.
_LEAST = {
    "shm-default-byte-size": (1 << 20, "can't be smaller than 4 MiBs"),
    "shm-growth-byte-size": (1, "can't be smaller than or equal to zero."),
    "stub-timeout-seconds": (1, "can't be smaller than or equal to zero."),
    "thread-pool-size": (1, "can't be less than 1."),
    "shm_message_queue_size": (-(2**63), ""),
}
#: All settings that mean something, here or in Triton.
NAMES = frozenset(
    {"host", "stub-restart", "stub-execution-timeout-seconds", "shm-region-prefix-name", *_LEAST}
)


def read(given: Mapping[str, str]) -> PythonSettings:
    """The settings in `given`; those that only Triton's own processes need are checked as there.

    Unknown names mean nothing. Raises ServerError.
    """
    for name, (least, complaint) in _LEAST.items():
        if name in given and _number(given[name]) < least:
            raise invalid_arg(f"{name} {complaint}")
    limit_s = _number(given.get("stub-execution-timeout-seconds", "0"))
    if limit_s < 0:
        raise invalid_arg("stub-execution-timeout-seconds can't be smaller than zero.")
    return PythonSettings(
        _host("host", given.get("host", Host.INLINE.value)),
        Supervision(_boolean("stub-restart", given.get("stub-restart", "true")), limit_s or None),
    )


def _number(text: str) -> int:
    number = leading_integer(text)
    if number is None or not -(2**63) <= number < 2**63:
        raise invalid_arg("stol")  # the C function that the real backend reads it with
    return number


def _boolean(name: str, text: str) -> bool:
    if text not in ("true", "false"):
        raise _refused(name, text, ("true", "false"))
    return text == "true"


def _host(name: str, text: str) -> Host:
    try:
        return Host(text)
    except ValueError:
        raise _refused(name, text, [host.value for host in Host]) from None


def _refused(name: str, text: str, known: Iterable[str]) -> ServerError:
    return invalid_arg(f"Incorrect value for {name}: '{text}', expected one of {', '.join(known)}")
