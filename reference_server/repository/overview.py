"""What is told of all models at once: the index for clients, the table for the log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from reference_server.core.errors import ServerError
from reference_server.repository import scan
from reference_server.repository.book import Book
from reference_server.repository.served import State, VersionStatus


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """One row of the repository index; what is None is not known."""

    name: str
    version: int | None = None
    state: State | None = None
    reason: str = ""


def index(
    folders: Mapping[str, Sequence[Path]],
    book: Book,
    errors: Mapping[str, ServerError],
    *,
    ready_only: bool,
) -> list[IndexEntry]:
    """The rows of all `folders`, by name, then version.

    `errors` are of models whose newest load failed: versions that serve on all the same are ready,
    and their reason tells why they are not what lies in the folder.
    """
    entries: list[IndexEntry] = []
    for name, paths in folders.items():
        records = book.records(name)
        if len(paths) > 1:
            entries.append(IndexEntry(name, state=State.UNAVAILABLE, reason=scan.DUPLICATE))
        elif records is None:
            if not ready_only:
                entries.append(IndexEntry(name))
        else:
            for record in records:
                state, reason = record.shown
                if state is State.READY and not reason and name in errors:
                    reason = f"serves as before, a newer load failed: {errors[name].described()}"
                if state is State.READY or not ready_only:
                    entries.append(IndexEntry(name, record.version, state, reason))
    return entries


def statuses(book: Book, errors: Mapping[str, ServerError]) -> list[VersionStatus]:
    """What became of each model version, by name, then version; `errors` are of models."""
    found: list[VersionStatus] = []
    for name in sorted({*book.names(), *errors}):
        records = book.records(name)
        if records:
            found += [
                VersionStatus(name, record.version, record.state, record.reason)
                for record in records
            ]
        elif name in errors:
            reason = errors[name].described()
            found.append(VersionStatus(name, None, State.UNAVAILABLE, reason))
    return found
