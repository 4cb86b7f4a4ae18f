"""Run a command in a child process that may crash or hang."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from ge_runtime.memory.machine import own_resident_bytes, read_limits

TIMEOUT_S: Final = 60.0
"""Importing torch from a cold disk takes some seconds, opening a device's driver a few more."""

_KILL_TIMEOUT_S: Final = 5.0
"""A process that waits inside a driver cannot be killed; it is abandoned after this time."""

_EXCEPTION: Final = re.compile(r"[A-Za-z_][\w.]*(Error|Exception)\b")
"""The start of a traceback's line that names the exception."""


class Outcome(Enum):
    """The way a child process ended."""

    DONE = "done"
    ABSENT = "absent"
    """The command or the module does not exist."""
    FAILED = "failed"
    """An exception, or an exit code other than 0."""
    CRASHED = "crashed"
    """Ended by a signal, for example a segmentation fault of a shared library."""
    TIMED_OUT = "timed out"
    """Killed after the time limit."""


@dataclass(frozen=True, slots=True)
class ChildResult:
    """The result of a child process."""

    outcome: Outcome
    facts: Mapping[str, str] = field(default_factory=dict)
    """Named values read from the output, if the caller reads any."""
    error: str = ""
    """The most useful line of the error output; empty if `outcome` is DONE."""
    stdout: str = ""
    stderr: str = ""


def run_command(command: Sequence[str], timeout_s: float = TIMEOUT_S) -> ChildResult:
    """Run a command to its end. Never raises for the command's own failure.

    The command runs in its own process group. At the time limit, and if this thread is
    interrupted, all processes of the group are killed.
    """
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except FileNotFoundError:
        return ChildResult(Outcome.ABSENT)
    except OSError as failure:
        return ChildResult(Outcome.FAILED, error=str(failure))
    try:
        stdout, stderr = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        stdout, stderr = _kill(process)
        error = f"no end after {timeout_s:g} s"
        return ChildResult(Outcome.TIMED_OUT, error=error, stdout=stdout, stderr=stderr)
    except BaseException:  # the terminal sends Ctrl-C to this process group, not the child's
        _kill(process)
        raise
    code = process.returncode
    if code == 0:
        return ChildResult(Outcome.DONE, stdout=stdout, stderr=stderr)
    if code < 0:
        outcome, error = Outcome.CRASHED, f"signal {-code}"
    else:
        outcome, error = Outcome.FAILED, _error_line(stderr, stdout) or f"exit code {code}"
    return ChildResult(outcome, error=error, stdout=stdout, stderr=stderr)


@contextmanager
def cleanup_on_termination() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise SystemExit, so that child processes and folders are removed.

    For the main thread.
    """

    def end(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def limit_memory() -> None:
    """Let this process fail to allocate more memory than the machine has available.

    Without a limit the kernel would end this process, or another one that needs more.
    """
    free = [limit.free_bytes for limit in read_limits()]
    if not free:
        return
    most = (own_resident_bytes() or 0) + min(free)
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard == resource.RLIM_INFINITY or most < hard:
        resource.setrlimit(resource.RLIMIT_DATA, (most, hard))


def _kill(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Kill the process group and return the output that was received."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired, ValueError):  # ValueError: a pipe is already closed
        return process.communicate(timeout=_KILL_TIMEOUT_S)
    return "", ""


def _error_line(stderr: str, stdout: str) -> str:
    lines = (stderr.strip() or stdout.strip()).splitlines()
    # torch_npu writes a line with the time and a number below its exceptions.
    exceptions = [line for line in lines if _EXCEPTION.match(line)]
    return (exceptions or lines or [""])[-1].strip()
