"""The call and line of a program that led to a finding.

A task runs later, on a stream's thread; its origin is that of its submission, see `of_task`.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

_PACKAGE: Final = f"{Path(__file__).parent}/"


class Origin(NamedTuple):
    """A call and the line that made it; all empty without a program."""

    call: str
    """The function, e.g. "acl.rt.free"."""
    file: str
    line: int
    function: str

    def __str__(self) -> str:
        if not self.file:
            return self.call
        return f"{self.call}, {_shown(self.file)}:{self.line} in {self.function}"


class _Here(threading.local):
    call: str = ""
    task: Origin | None = None


HERE: Final = _Here()
"""Thread-local; `call` is the last function of `acl` that this thread called."""


def origin() -> Origin:
    """Return the origin of the running code: the nearest line outside of this package."""
    if HERE.task is not None:
        return HERE.task
    frame = sys._getframe(1)
    while frame.f_code.co_filename.startswith(_PACKAGE):
        if frame.f_back is None:
            return Origin(HERE.call, "", 0, "")
        frame = frame.f_back
    code = frame.f_code
    return Origin(HERE.call, code.co_filename, frame.f_lineno, code.co_name)


@contextmanager
def of_task(submitted: Origin) -> Iterator[None]:
    """Attribute findings in this block to a task's submission."""
    before, HERE.task = HERE.task, submitted
    try:
        yield
    finally:
        HERE.task = before


def _shown(file: str) -> str:
    try:
        return str(Path(file).relative_to(Path.cwd()))
    except (OSError, ValueError):
        return file
