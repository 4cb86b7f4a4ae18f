"""Compressed captures: a file whose name ends with `.gz` or `.zst`.

Each write is a whole gzip member or zstd frame, so that a crash loses only the last write.
Standard tools read and write these files.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import importlib
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Final

from triton_replay.errors import CaptureUnreadable, FileUnwritable

_GZIP: Final = b"\x1f\x8b"
_ZSTD: Final = b"\x28\xb5\x2f\xfd"
_PIECE: Final = 2**20


def compressor_of(path: Path) -> Callable[[bytes], bytes] | None:
    """Return the function that compresses data for this file; None if its suffix is another.

    Raises:
        CaptureUnreadable: zstd is not installed.
    """
    if path.suffix == ".gz":
        return functools.partial(gzip.compress, compresslevel=1, mtime=0)
    if path.suffix != ".zst":
        return None
    name, module = _zstd(path)
    compress: Callable[[bytes], bytes] = (
        module.ZstdCompressor().compress if name == "zstandard" else module.compress
    )
    return compress


@contextlib.contextmanager
def decompressed(path: Path) -> Iterator[IO[bytes]]:
    """Open a file; if it is compressed, open a temporary file with the decompressed content.

    Of an incomplete or damaged file, the content before the damage is decompressed.

    Raises:
        CaptureUnreadable: zstd is not installed.
        FileUnwritable: The temporary folder has no room.
        OSError: The file cannot be read.
    """
    with path.open("rb") as file:
        start = file.read(len(_ZSTD))
        file.seek(0)
        if start != _ZSTD and not start.startswith(_GZIP):
            yield file
            return
        with TemporaryFile() as found:
            for piece in _pieces(file, path, is_zstd=start == _ZSTD):
                try:
                    found.write(piece)
                    found.flush()
                except OSError as error:
                    raise FileUnwritable(f"temporary file for {path}", error) from error
            yield found


def _pieces(file: IO[bytes], path: Path, *, is_zstd: bool) -> Iterator[bytes]:
    failures: tuple[type[Exception], ...] = (EOFError, zlib.error, gzip.BadGzipFile)
    packed: Any
    if is_zstd:
        name, module = _zstd(path)
        failures = (EOFError, module.ZstdError)
        if name == "zstandard":
            packed = module.ZstdDecompressor().stream_reader(file, read_across_frames=True)
        else:
            packed = module.ZstdFile(file)
    else:
        packed = gzip.GzipFile(fileobj=file)
    with packed, contextlib.suppress(*failures):
        # `read` would lose the data before the damage.
        while piece := packed.read1(_PIECE):
            yield piece


def _zstd(path: Path) -> tuple[str, Any]:
    for name in ("compression.zstd", "zstandard"):  # the first one is in Python 3.14
        try:
            return name, importlib.import_module(name)
        except ImportError:
            continue
    raise CaptureUnreadable(
        f"{path}: zstd needs Python 3.14 or `pip install 'triton-replay[zstd]'`. "
        "Use the suffix .gz for gzip"
    )
