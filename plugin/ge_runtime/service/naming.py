"""What clients are called in logs and tables. Models are called as `errors.shown` has it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_MOST_CHARACTERS: Final = 256


def client_name(given: object) -> str:
    """What a client calls itself: of limited length, and nothing that a terminal would obey."""
    text = str(given)[:_MOST_CHARACTERS]
    return "".join(character if character.isprintable() else "?" for character in text)


def process_name(pid: int) -> str:
    """What the system calls a process; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
