"""Programs in processes of their own, for a limited time: a crash or a hang harms nobody else."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
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
