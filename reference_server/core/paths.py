"""Checks that paths in a configuration stay inside the model's folder."""

from __future__ import annotations

import os
from pathlib import Path

from reference_server.core.errors import invalid_arg


def is_within(folder: Path, path: Path, *, through_links: bool = False) -> bool:
    """Return True if `path` is inside `folder`.

    A client that sends a configuration can write `..` and absolute paths into it. Only users who
    can write into the repository, and therefore can add code, can create links. So links are
    followed, as in Triton, except for files whose content clients can read.

    Args:
        folder: The folder.
        path: The path to check.
        through_links: Resolve links first; otherwise only the text of the path is checked.
    """
    if through_links:
        return path.resolve().is_relative_to(folder.resolve())
    return _written(path).is_relative_to(_written(folder))


def within(folder: Path, path: Path, field: str) -> Path:
    """Return `path` if it is inside `folder`.

    Raises:
        ServerError: INVALID_ARG, with the name of the configuration's `field`.
    """
    if not is_within(folder, path):
        raise invalid_arg(f"{field}: found '{path}', expected a file in '{folder}'", field)
    return path


def refuse_links_out(folder: Path) -> None:
    """Check that no link in a model's folder leads out of it.

    Raises:
        ServerError: INVALID_ARG, with the link and its target.
    """
    root = folder.resolve()
    for where, folders, files in os.walk(folder):  # does not follow links
        for name in (*folders, *files):
            path = Path(where, name)
            if path.is_symlink() and not path.resolve().is_relative_to(root):
                raise invalid_arg(
                    f"found a link '{path}' to '{path.resolve()}', expected links within "
                    f"'{folder}' (--allow-outside-links=false)"
                )


def _written(path: Path) -> Path:
    """Return the absolute path without `..`, without resolving links."""
    return Path(os.path.normpath(path.absolute()))
