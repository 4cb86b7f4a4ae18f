"""Run commands and executions of graphs in child processes, which may crash or hang."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from ge_runtime.memory.machine import own_resident_bytes, read_limits

TIMEOUT_S: Final = 60.0
"""Importing torch from a cold disk takes some seconds, opening a device's driver a few more."""

_KILL_TIMEOUT_S: Final = 5.0
"""A process that waits inside a driver cannot be killed; it is abandoned after this time."""

_BOOT: Final = """\
import sys
from importlib import import_module
module, paths, *arguments = sys.argv[1:]
sys.path[:] = paths.split("\\n")
from ge_runtime.child_process import limit_memory
limit_memory()
sys.exit(import_module(module).main(arguments))
"""
"""The code that a child process runs; `paths` is the import path of the parent process."""

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
    """Named values that the caller has read from the output; empty as returned here."""
    exit_code: int = 0
    error: str = ""
    """The most useful line of the error output; empty if `outcome` is DONE."""
    stdout: str = ""
    stderr: str = ""


def run_command(
    command: Sequence[str],
    timeout_s: float | None = TIMEOUT_S,
    *,
    stdin: str = "",
    shows_stderr: bool = False,
    env: Mapping[str, str] | None = None,
) -> ChildResult:
    """Run a command to its end. Never raises for the command's own failure.

    The command runs in its own process group. At the time limit, and if this thread is
    interrupted, all processes of the group are killed.

    Args:
        command: The executable and its arguments.
        timeout_s: Seconds until the command is killed; None for no limit.
        stdin: The standard input.
        shows_stderr: True to write the child's error output to the error output of this process.
        env: The environment; by default that of this process.
    """
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=None if shows_stderr else subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
            env=env,
        )
    except FileNotFoundError:
        return ChildResult(Outcome.ABSENT)
    except OSError as failure:
        return ChildResult(Outcome.FAILED, error=str(failure))
    try:
        stdout, stderr = process.communicate(stdin or None, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        stdout, stderr = _kill(process)
        error = f"no end after {timeout_s:g} s"
        return ChildResult(Outcome.TIMED_OUT, error=error, stdout=stdout, stderr=stderr)
    except BaseException:  # the terminal sends Ctrl-C to this process group, not the child's
        _kill(process)
        raise
    stderr = stderr or ""  # None if it was shown
    code = process.returncode
    if code == 0:
        return ChildResult(Outcome.DONE, stdout=stdout, stderr=stderr)
    if code < 0:
        outcome, error = Outcome.CRASHED, f"signal {-code}"
    else:
        outcome, error = Outcome.FAILED, _error_line(stderr, stdout) or f"exit code {code}"
    return ChildResult(outcome, error=error, stdout=stdout, stderr=stderr, exit_code=code)


def run_graph_process(
    module: str,
    arguments: Sequence[str] = (),
    timeout_s: float | None = None,
    *,
    stdin: str = "",
    shows_stderr: bool = False,
) -> ChildResult:
    """Run a module's `main(arguments)` in a process that executes a graph.

    A graph may crash the engine at sizes that it does not expect, or need more memory than the
    machine has. So `limit_memory` is called in the process, and its temporary files are removed
    even if it crashes. For other arguments and the result see `run_command`.
    """
    paths = "\n".join(str(Path(path).absolute()) for path in sys.path)
    with TemporaryDirectory(prefix="ge_runtime_graph_") as scratch:
        return run_command(
            [sys.executable, "-c", _BOOT, module, paths, *arguments],
            timeout_s,
            stdin=stdin,
            shows_stderr=shows_stderr,
            env={**os.environ, "TMPDIR": scratch},
        )


@contextmanager
def cleanup_on_termination() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise SystemExit, so that child processes and folders are removed.

    Must be called in the main thread.
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
    """Make allocations of this process fail beyond the memory that the machine has available.

    Without a limit the kernel would kill this process, or another process that uses more memory.
    """
    free = [limit.free_bytes for limit in read_limits()]
    if not free:
        return
    most = (own_resident_bytes() or 0) + min(free)
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard == resource.RLIM_INFINITY or most < hard:
        resource.setrlimit(resource.RLIMIT_DATA, (most, hard))


def _kill(process: subprocess.Popen[str]) -> tuple[str, str]:
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
