"""Trials: imports and commands, each in a process of its own that may crash or hang."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

_KILLED_S: Final = 5.0
"""How long a killed process may take to go."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A program that ran."""

    printed: str
    complained: str
    """On standard error, if that was apart."""
    code: int | None
    """Its exit code; -N if signal N ended it; None if its time was up, and it was killed."""


class Program:
    """One that was started. For one thread."""

    def __init__(
        self, command: Sequence[str], *, together: bool = False, family: bool = True
    ) -> None:
        """together: what it complains of is among what it prints.

        family: the processes that it starts in turn end with it when it is killed.
        Raises OSError where it cannot be started.
        """
        self._family = family
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if together else subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=family,
        )

    def result(self, timeout_s: float) -> Ended:
        """What became of it; blocks until it has ended, or was killed when its time was up."""
        try:
            printed, complained = self._process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired as late:
            self.kill()
            return Ended(_text(late.stdout), _text(late.stderr), None)
        except BaseException:  # a Ctrl-C does not reach what has a session of its own
            self.kill()
            raise
        return Ended(printed, complained or "", self._process.returncode)

    def line(self) -> str:
        """The next line that it prints; "" if it ended."""
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def kill(self) -> None:
        """End it, as `kill -9` does. Safe if it has ended."""
        if self._process.poll() is None:
            if self._family:
                os.killpg(self._process.pid, signal.SIGKILL)
            else:
                self._process.kill()
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()
        # One that waits within a driver cannot be killed, and is left alone.
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_KILLED_S)


def _text(printed: bytes | str | None) -> str:
    return printed.decode(errors="replace") if isinstance(printed, bytes) else printed or ""


TIMEOUT_S: Final = 60.0
"""For one process. torch takes some seconds from a cold disk, a device's driver some more."""

# What each module is asked once it is imported. Every value of `facts` is a text.
_QUESTIONS: Final[Mapping[str, str]] = {
    "numpy": "facts = {}",
    "onnxruntime": """
import ctypes, pathlib
facts = {"providers": ", ".join(module.get_available_providers())}
if "CUDAExecutionProvider" in facts["providers"]:
    # It is listed if it was built; only loading its library tells whether CUDA's are there.
    folder = pathlib.Path(module.__file__).parent / "capi"
    getattr(module, "preload_dlls", lambda: None)()  # as the engine does
    try:
        for name in ("shared", "cuda"):
            file = folder / f"libonnxruntime_providers_{name}.so"
            ctypes.CDLL(str(file), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        facts["cuda_error"] = str(error)
""",
    "torch": """
facts = {"cuda": str(module.version.cuda or "")}
if facts["cuda"]:
    facts["cuda_devices"] = str(module.cuda.device_count())
""",
    # Neither init nor the count takes anything of a device. init may find it done already.
    "acl": """
facts = {"file": str(getattr(module, "__file__", "")), "soc": ""}
code = module.init()
count = 0
if code in (0, 100002):
    facts["soc"] = module.get_soc_name() or "unknown"
    count, code = module.rt.get_device_count()
    module.finalize()
facts.update(code=str(code), devices=str(count))
""",
    "torch_npu": "facts = {}",
    "ge": """
from ge_runtime.npu.driver.ge_py import GE_PY_MODULES, missing_names
modules = {name: importlib.import_module(each) for name, each in GE_PY_MODULES.items()}
facts = {"file": str(module.__file__), "lacking": ", ".join(missing_names(modules))}
""",
    "reference_server": """
from reference_server.core.profiles import NEWEST, V2_51
facts = {"default": f"tritonserver {NEWEST.version} ({NEWEST.name})", "proven": V2_51.name}
""",
}
TRIED_MODULES: Final = tuple(_QUESTIONS)

_EXCEPTION: Final = re.compile(r"[A-Za-z_][\w.]*(Error|Exception)\b")
"""How Python begins the line that names one."""

_MARK: Final = "imported: "
"""Before what was found out, among all that a library may print."""

_PROGRAM: Final = f"""
import importlib.util, json, os, sys
sys.path[:] = filter(None, sys.path)  # the current folder is no place to import from
facts = None
try:
    if importlib.util.find_spec(sys.argv[1]) is not None:
        module = importlib.import_module(sys.argv[1])
        exec(sys.argv[2])
except SystemExit as end:  # as of old torch_npu without CANN, whose code is 0
    sys.exit(end.code or 1)
print("\\n{_MARK}" + json.dumps(facts), flush=True)
os._exit(0)  # how libraries end is their own affair
"""


def try_import(module: str, timeout_s: float = TIMEOUT_S) -> Trial:
    """Import one of TRIED_MODULES in a new process, and ask it what there is to know."""
    command = [sys.executable, "-c", _PROGRAM, module, _QUESTIONS[module]]
    trial, printed = run_command(command, timeout_s)
    if trial.outcome is not Outcome.DONE:
        return trial
    told = [line for line in printed.splitlines() if line.startswith(_MARK)]
    if not told:
        return Trial(Outcome.FAILED, error="the process ended within the import, with code 0")
    facts = json.loads(told[-1].removeprefix(_MARK))
    return Trial(Outcome.ABSENT) if facts is None else Trial(Outcome.DONE, facts)


def run_command(command: Sequence[str], timeout_s: float = TIMEOUT_S) -> tuple[Trial, str]:
    """Run a command to its end; what became of it, and what it printed."""
    try:
        ended = Program(command).result(timeout_s)
    except FileNotFoundError:
        return Trial(Outcome.ABSENT), ""
    except OSError as error:
        return Trial(Outcome.FAILED, error=str(error)), ""
    if ended.code is None:
        return Trial(Outcome.HUNG, error=f"no end after {timeout_s:g} s"), ""
    if ended.code == 0:
        return Trial(Outcome.DONE), ended.printed
    if ended.code < 0:
        return Trial(Outcome.DIED, error=f"signal {-ended.code}"), ended.printed
    complaint = (ended.complained.strip() or ended.printed.strip()).splitlines()
    # torch_npu's exceptions have a line of their own below, with the time and a number.
    errors = [line for line in complaint if _EXCEPTION.match(line)] or complaint
    last = errors[-1].strip() if errors else f"exit code {ended.code}"
    return Trial(Outcome.FAILED, error=last), ended.printed


class Outcome(Enum):
    """How it ended when a module was imported, or a command was run, in a process of its own."""

    DONE = "done"
    ABSENT = "absent"
    """There is no such module or command."""
    FAILED = "failed"
    """An exception, or an exit code other than 0."""
    DIED = "died"
    """Of a signal, as when a shared library crashes."""
    HUNG = "hung"
    """It was ended when its time was up."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One such process."""

    outcome: Outcome
    facts: Mapping[str, str] = field(default_factory=dict)
    """What it found out, if it is DONE."""
    error: str = ""
    """The line of what it complained of that says most, otherwise."""
