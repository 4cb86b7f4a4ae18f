"""Paths that a configuration names: what they may reach."""

from __future__ import annotations

import os
from pathlib import Path

from reference_server.core.errors import invalid_arg


def is_within(folder: Path, path: Path, *, through_links: bool = False) -> bool:
    """Whether `path` lies in `folder` as it is written, or `through_links` where it really leads.

    Who can only send a configuration can write `..` and absolute paths into it. Links are made by
    who can write into the repository, and so put code there: elsewhere than for what clients are
    shown, they are followed as Triton follows them.
    """
    if through_links:
        return path.resolve().is_relative_to(folder.resolve())
    return _written(path).is_relative_to(_written(folder))


def within(folder: Path, path: Path, field: str) -> Path:
    """`path`, if it lies in `folder`. Raises ServerError INVALID_ARG that names the `field`."""
    if not is_within(folder, path):
        raise invalid_arg(f"{field}: found '{path}', expected a file in '{folder}'")
    return path


def refuse_links_out(folder: Path) -> None:
    """Refuse a model's folder that has a link to what lies outside of it.

    Raises ServerError INVALID_ARG that names the link and where it leads.
    """
    root = folder.resolve()
    for where, folders, files in os.walk(folder):  # which follows no link itself
        for name in (*folders, *files):
            path = Path(where, name)
            if path.is_symlink() and not path.resolve().is_relative_to(root):
                raise invalid_arg(
                    f"found a link '{path}' to '{path.resolve()}', expected links within "
                    f"'{folder}' (--allow-outside-links=false)"
                )


def _written(path: Path) -> Path:
    """`path` without `..`, whatever links there are."""
    return Path(os.path.normpath(path.absolute()))
