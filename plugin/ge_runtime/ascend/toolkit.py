"""Which release of CANN a folder holds, by what its installer leaves there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

_RUNNING: Final = re.compile(r"^\w+_running_version=\[(?:[^\]:]*:)?([^\]]+)\]", re.MULTILINE)
_INSTALLED: Final = re.compile(r"^version=(\S+)", re.MULTILINE)


def cann_version(home: Path) -> str | None:
    """E.g. 8.3.RC1, of the toolkit in `home`; None if no file there tells it.

    Releases have version.cfg, or ascend_toolkit_install.info for each processor, or both.
    """
    files = [
        (_RUNNING, home / "version.cfg"),
        *((_INSTALLED, file) for file in sorted(home.glob("*-linux/ascend_toolkit_install.info"))),
    ]
    matches = (pattern.search(text_of(file) or "") for pattern, file in files)
    return next((match[1] for match in matches if match), None)


def text_of(file: Path) -> str | None:
    """What is in the file, or None if it cannot be read."""
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
