"""Probes in processes of their own."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ge_runtime.cli.processes import Program

if TYPE_CHECKING:
    from ge_runtime.cli.settle.lab import Lab


MARK: Final = "settled: "
"""Before what came of a probe, among all that a library may print."""


class Running:
    """A probe that was started."""

    def __init__(
        self, name: str, device: int, folder: Path, *arguments: str, family: bool = True
    ) -> None:
        """name: of the probe. arguments: what it takes beside the lab. family: see Program."""
        module = [sys.executable, "-m", "ge_runtime.cli.settle"]
        command = [*module, name, str(device), str(folder), *arguments]
        self.program = Program(command, together=True, family=family)

    def result(self, timeout_s: float) -> tuple[str, str, dict[str, Any]]:
        """What became of it, in one word; its answer; its evidence."""
        ended = self.program.result(timeout_s)
        for line in reversed(ended.printed.splitlines()):
            if line.startswith(MARK):
                told: tuple[str, str, dict[str, Any]] = tuple(json.loads(line.removeprefix(MARK)))
                late = ended.code is None
                note = {"giving_back": f"no end within {timeout_s:g} s"} if late else {}
                return (*told[:2], {**told[2], **note})
        if ended.code is None:
            return "hung", f"no answer within {timeout_s:g} s", {}
        return "died", f"it ended with {ended.code}", {"printed": ended.printed[-2000:]}

    def answer(self) -> tuple[str, dict[str, Any]]:
        """Of a probe that another one started: what it says, and its evidence."""
        outcome, text, evidence = self.result(60.0)
        return (text if outcome == "answered" else f"{outcome}, {text}"), evidence


def start(lab: Lab, name: str, *arguments: str) -> Running:
    """Another probe, beside that of this lab."""
    return Running(name, lab.device, lab.folder, *arguments, family=False)
