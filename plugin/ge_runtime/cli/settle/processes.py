"""Probes in processes of their own: one that crashes or never ends harms no other."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ge_runtime.cli.settle.lab import Lab


MARK: Final = "settled: "
"""Before what came of a probe, among all that a library may print."""


class Running:
    """A probe that was started."""

    def __init__(
        self, name: str, device: int, folder: Path, *arguments: str, session: bool = True
    ) -> None:
        """name: of the probe. arguments: what it takes beside the lab.

        session: whether the processes that it starts in turn end with it when it is killed.
        """
        self._session = session
        module = [sys.executable, "-m", "ge_runtime.cli.settle"]
        self._process = subprocess.Popen(
            [*module, name, str(device), str(folder), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=session,
        )

    def result(self, timeout_s: float) -> tuple[str, str, dict[str, Any]]:
        """What became of it, in one word; its answer; its evidence."""
        printed, outcome = "", ""
        try:
            printed, _ = self._process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired as late:
            printed = _text(late.stdout)
            outcome = "hung"
        self.kill()
        for line in reversed(printed.splitlines()):
            if line.startswith(MARK):
                told: tuple[str, str, dict[str, Any]] = tuple(json.loads(line.removeprefix(MARK)))
                note = {"giving_back": f"no end within {timeout_s:g} s"} if outcome else {}
                return (*told[:2], {**told[2], **note})
        if outcome:
            return outcome, f"no answer within {timeout_s:g} s", {}
        return "died", f"it ended with {self._process.returncode}", {"printed": printed[-2000:]}

    def answer(self) -> tuple[str, dict[str, Any]]:
        """Of a probe that another one started: what it says, and its evidence."""
        outcome, text, evidence = self.result(60.0)
        return (text if outcome == "answered" else f"{outcome}, {text}"), evidence

    def kill(self) -> None:
        """End it, as `kill -9` does. Safe if it has ended."""
        if self._process.poll() is None:
            if self._session:
                os.killpg(self._process.pid, signal.SIGKILL)
            else:
                self._process.kill()
        self._process.wait()
        if self._process.stdout:
            self._process.stdout.close()

    def line(self) -> str:
        """The next line that it prints; "" if it ended."""
        assert self._process.stdout is not None
        return self._process.stdout.readline()


def start(lab: Lab, name: str, *arguments: str) -> Running:
    """Another probe, beside that of this lab."""
    return Running(name, lab.device, lab.folder, *arguments, session=False)


def _text(printed: bytes | str | None) -> str:
    return printed.decode(errors="replace") if isinstance(printed, bytes) else printed or ""
