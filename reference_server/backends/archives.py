"""Unpacks tar archives of Python environments. Archives are not trusted: each entry is checked.

Links are created after all files, so no file is ever written through a link.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
import re
import tarfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

_CHUNK = 1 << 18
#: The limit for one read. tarfile reads the extension of a header as a whole.
_READ_LIMIT = 1 << 20
_GZIP = b"\x1f\x8b"
#: venv-pack makes these paths links to the interpreter that created the environment.
_INTERPRETER = re.compile(r"bin/python[0-9.]*")
_MTIME_LIMIT = 1 << 32
#: The path of an entry: its components.
_Parts = tuple[str, ...]


class ArchiveError(Exception):
    """The archive cannot be unpacked. `text` is Triton's error text for the same archive."""

    def __init__(self, reason: str, text: str = "") -> None:
        super().__init__(reason)
        self.text = text or reason


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one archive.

    Attributes:
        content_bytes: The size of the decompressed archive.
        entries: The number of files, folders and links.
    """

    content_bytes: int = 32 << 30
    entries: int = 1_000_000


def unpack(archive: IO[bytes], into: Path, limits: Limits) -> str:
    """Unpack a tar archive, plain or compressed by gzip, into an empty folder.

    Owners, special mode bits and the write permissions of others are not restored.

    Args:
        archive: The file, at its start.
        into: The folder. After an exception it contains a part of the archive.
        limits: The limits of the archive.

    Returns:
        The SHA-256 of the file in hexadecimal digits.

    Raises:
        ArchiveError: The file is not a tar archive, or an entry is refused.
        OSError: A file cannot be read or written.
    """
    compressed = archive.read(len(_GZIP)) == _GZIP
    archive.seek(0)
    hashed = _Hashed(archive)
    plain = cast(IO[bytes], hashed)  # only `read` is called
    source = cast(IO[bytes], gzip.GzipFile(fileobj=plain)) if compressed else plain
    content = _Content(source, limits)
    _Unpacking(content, into, limits).run()
    hashed.read_rest()
    return hashed.digest.hexdigest()


def digest_of(archive: IO[bytes]) -> str:
    """Return the SHA-256 of a file, positioned at its start, in hexadecimal digits."""
    hashed = _Hashed(archive)
    hashed.read_rest()
    return hashed.digest.hexdigest()


class _Hashed:
    """Computes the hash of a file while it is read."""

    def __init__(self, file: IO[bytes]) -> None:
        self.digest = hashlib.sha256()
        self._file = file

    def read(self, size: int) -> bytes:
        data = self._file.read(size)
        self.digest.update(data)
        return data

    def read_rest(self) -> None:
        while self.read(_CHUNK):
            pass


class _Content:
    """The decompressed archive. It can only be read forward, and each read is limited.

    If a size in a header is negative, some releases of tarfile seek back or read without a limit.
    """

    def __init__(self, file: IO[bytes], limits: Limits) -> None:
        self._file = file
        self._limit = limits.content_bytes
        self._position = 0
        self.last_read = b""

    def tell(self) -> int:
        return self._position

    def seek(self, position: int) -> None:
        if position < self._position:
            raise _broken("a size is negative")
        while self._position < position and self.read(min(position - self._position, _CHUNK)):
            pass

    def read(self, size: int) -> bytes:
        if not 0 <= size <= _READ_LIMIT:
            raise ArchiveError(
                f"found a header of {size} bytes; expected {_READ_LIMIT} bytes at most"
            )
        try:
            data = self._file.read(size)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise _broken(error) from None
        self.last_read = data
        self._position += len(data)
        if self._position > self._limit:
            raise ArchiveError(
                f"found content of more than {self._limit} bytes; expected {self._limit} at most"
            )
        return data


def _broken(reason: object) -> ArchiveError:
    return ArchiveError(
        f"found a damaged archive: {reason}",
        f"archive_read_next_header() failed with error code = -30 error message is {reason}",
    )


class _Unpacking:
    """Unpacks one archive."""

    def __init__(self, content: _Content, into: Path, limits: Limits) -> None:
        self._content = content
        self._into = into
        self._limit = limits.entries
        self._count = 0
        self._folders: set[_Parts] = {()}
        self._links: dict[_Parts, str] = {}

    def run(self) -> None:
        tar = self._open()
        try:
            entry = tar.next()
            while entry is not None:
                tar.members.clear()  # type: ignore[attr-defined]  # tarfile keeps all entries
                self._unpack(entry)
                entry = tar.next()
        except (tarfile.TarError, ValueError, RecursionError, OverflowError) as error:
            raise _broken(error) from None  # RecursionError: a long chain of headers
        if any(self._content.last_read):  # tarfile treats an invalid header as the end
            raise _broken("invalid header")
        for parts, target in self._links.items():
            self._make_link(parts, target)

    def _open(self) -> tarfile.TarFile:
        try:
            return tarfile.TarFile(fileobj=self._content, errorlevel=2)  # type: ignore[arg-type]
        except (tarfile.TarError, ArchiveError) as error:
            raise ArchiveError(
                f"found another file ({error}); expected a tar archive, plain or gzip",
                "archive_read_open_filename() failed.",
            ) from None

    def _unpack(self, entry: tarfile.TarInfo) -> None:
        parts = _parts(entry, entry.name)
        if entry.isdir():
            self._make_folder(parts)
            return
        if not parts:
            raise _refusal(entry, "an empty name", "a path inside the archive")
        self._make_folder(parts[:-1])
        self._add()
        self._links.pop(parts, None)
        if entry.issym():
            _check_target(entry, parts)
            self._links[parts] = entry.linkname
            return
        path = self._into.joinpath(*parts)
        with contextlib.suppress(FileNotFoundError):  # a later entry replaces an earlier one
            path.unlink()
        if entry.islnk():
            source = self._into.joinpath(*_parts(entry, entry.linkname))
            if not source.is_file():
                found = f"a hard link to '{entry.linkname}'"
                raise _refusal(entry, found, "an earlier file as its target")
            os.link(source, path)
        elif entry.isreg() and not entry.issparse():
            try:
                self._write(entry, path)
            except ArchiveError as error:
                text = "archive_read_data_block() failed with error code = -30"
                raise ArchiveError(str(error), text) from None
        else:
            raise _refusal(entry, f"type {entry.type!r}", "a file, folder or link")

    def _add(self) -> None:
        self._count += 1
        if self._count > self._limit:
            raise ArchiveError(
                f"found more than {self._limit} entries; expected {self._limit} at most"
            )

    def _make_folder(self, parts: _Parts) -> None:
        """Create a folder and its missing parents. Each folder counts as an entry."""
        if parts not in self._folders:
            self._make_folder(parts[:-1])
            self._add()
            self._into.joinpath(*parts).mkdir()
            self._folders.add(parts)

    def _write(self, entry: tarfile.TarInfo, path: Path) -> None:
        with path.open("xb") as file:
            left = entry.size
            while left:
                data = self._content.read(min(left, _CHUNK))
                if not data:
                    raise _broken(f"entry '{entry.name}' lacks {left} bytes")
                file.write(data)
                left -= len(data)
            os.fchmod(file.fileno(), entry.mode & 0o755 | 0o600)
        if 0 <= entry.mtime < _MTIME_LIMIT:  # compiled modules contain the time of their source
            os.utime(path, (entry.mtime, entry.mtime))

    def _make_link(self, parts: _Parts, target: str) -> None:
        path = self._into.joinpath(*parts)
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        path.symlink_to(target)
        if target.startswith("/") and path.is_dir():
            name = "/".join(parts)
            raise ArchiveError(
                f"entry '{name}': found a link to the folder {target}; expected an interpreter"
            )


def _parts(entry: tarfile.TarInfo, name: str) -> _Parts:
    """Return the components of a path in the archive. Raises ArchiveError if it leads outside."""
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if name.startswith("/") or ".." in parts or "\0" in name:
        raise _refusal(entry, f"path '{name}'", "a path inside the archive")
    return parts


def _check_target(entry: tarfile.TarInfo, parts: _Parts) -> None:
    """Check that a symbolic link stays inside. Raises ArchiveError.

    The parts `..` of a target must come first, so that no chain of links leads outside either.
    """
    target = entry.linkname
    if target.startswith("/"):
        if not _INTERPRETER.fullmatch("/".join(parts)):
            raise _refusal(entry, f"a link to '{target}'", "a relative path as its target")
        return
    steps = [part for part in target.split("/") if part not in ("", ".")]
    up = next((index for index, step in enumerate(steps) if step != ".."), len(steps))
    if up >= len(parts) or ".." in steps[up:] or "\0" in target:
        raise _refusal(entry, f"a link to '{target}'", "a target inside the archive")


def _refusal(entry: tarfile.TarInfo, found: str, expected: str) -> ArchiveError:
    return ArchiveError(f"entry '{entry.name}': found {found}; expected {expected}")
