"""A model's own Python environment: the parameter EXECUTION_ENV_PATH.

The value is a folder, or an archive of a folder, made by `conda-pack` or `venv-pack`. As in Triton,
the folder's `bin/activate` is sourced, and the model runs with the environment's Python.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from reference_server.backends.archives import ArchiveError, Limits, digest_of, unpack
from reference_server.core.errors import internal

log = logging.getLogger(__name__)

PARAMETER = "EXECUTION_ENV_PATH"
_MODEL_DIRECTORY = "$$TRITON_MODEL_DIRECTORY"
#: Programs in the folder `bin`, in the order in which they are looked for.
_PYTHONS = ("python3", "python")
#: The oldest Python and NumPy with which the code of the child process runs.
_OLDEST_PYTHON = (3, 9)
_OLDEST_NUMPY = (1, 21)
#: A program that prints a JSON list. Any Python can run it.
_PROBE = """
import json, platform, sys
try:
    import numpy
    found = numpy.__version__
except ImportError as error:
    found = None
print(json.dumps([platform.python_implementation(), list(sys.version_info[:2]), found]))
"""
_PROBE_LIMIT_S = 60.0
#: The number of characters, from the end of a program's stderr, that an error shows.
_SHOWN = 1000
#: The exit codes of a shell that cannot execute a program.
_CANNOT_EXECUTE = (126, 127)


@dataclass(frozen=True, slots=True)
class Environment:
    """An environment in which a model's process can be started.

    Attributes:
        folder: The folder with `bin/activate`.
        python: The interpreter.
    """

    folder: Path
    python: Path

    @property
    def libraries(self) -> Path:
        """The folder that precedes LD_LIBRARY_PATH while the interpreter starts, as in Triton."""
        return self.folder / "lib"

    def command(self, *arguments: str) -> list[str]:
        """Return a command that activates the environment and runs Python with `arguments`."""
        activate = shlex.quote(str(self.folder / "bin" / "activate"))
        libraries = shlex.quote(str(self.libraries))
        steps = (
            f"source {activate}",
            f'export LD_LIBRARY_PATH={libraries}"${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"',
            f"exec {shlex.join([str(self.python), *arguments])}",
        )
        return ["bash", "-c", " && ".join(steps)]


def expanded(value: str, model_directory: Path) -> str:
    """Return the path in a value of EXECUTION_ENV_PATH; empty if the value is empty."""
    at = value.find(_MODEL_DIRECTORY)
    if at < 0:
        return value
    # Like Triton, this removes too many characters if the name is not at the start.
    return value[:at] + str(model_directory) + value[2 * at + len(_MODEL_DIRECTORY) :]


def located(path: str) -> Path:
    """Return the real path. A relative path starts at the working directory. Raises ServerError."""
    try:
        return Path(path).resolve(strict=True)
    except (OSError, RuntimeError, ValueError):  # RuntimeError: a loop of links
        raise internal(f"Failed to get the canonical path for {path}.") from None


def check_folder(folder: Path) -> None:
    """Check that a folder can be an environment. Raises ServerError."""
    activate = folder / "bin" / "activate"
    if not activate.exists():
        raise internal(
            f"Path {activate} does not exist. The Python environment should contain an 'activate' "
            "script."
        )


class Environments:
    """Finds, unpacks and checks the environments of models. Thread-safe.

    An archive is unpacked once, into a folder of the cache whose name is the hash of the archive's
    content. Servers share the cache and never clear it: its folders may be removed. A model waits
    only for its own environment.

    Args:
        cache: The folder of the cache; default `$XDG_CACHE_HOME/reference_server/environments`.
        limits: The limits of one archive.
    """

    def __init__(self, cache: Path | None = None, limits: Limits | None = None) -> None:
        self._cache = cache
        self._limits = limits or Limits()
        #: One lock for each real path.
        self._locks: dict[Path, threading.Lock] = {}
        # Known archives, so that they are not read again for each instance.
        self._digests: dict[tuple[int, ...], str] = {}
        self._checked: set[tuple[Path, int]] = set()

    def get(self, named: str) -> Environment:
        """Unpack and check the environment at a path, and return it. Blocks.

        Raises ServerError if the path does not exist, or if a model's process cannot run in it.
        """
        path = located(named)
        with self._locks.setdefault(path, threading.Lock()):
            folder = path if path.is_dir() else self._unpacked(path)
            check_folder(folder)
            environment = Environment(folder, _interpreter(folder))
            key = folder, environment.python.stat().st_mtime_ns
            if key not in self._checked:
                _check(environment)
                self._checked.add(key)
            return environment

    def _unpacked(self, archive: Path) -> Path:
        """Return the folder of an archive. Unpack the archive if the cache lacks the folder."""
        try:
            with archive.open("rb") as file:
                status = os.fstat(file.fileno())
                key = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
                digest = self._digests.get(key)
                if digest is None:
                    digest = self._digests[key] = digest_of(file)
                    file.seek(0)
                folder = self._cache_folder() / digest
                with folder.with_suffix(".lock").open("w") as lock:  # other servers use the cache
                    fcntl.flock(lock, fcntl.LOCK_EX)
                    if not folder.is_dir():
                        log.debug("Extracting Python execution env %s", archive)
                        self._unpack(file, folder, digest)
                return folder
        except ArchiveError as error:
            log.error("Python execution env %s: %s", archive, error)
            raise internal(error.text) from None
        except OSError as error:
            raise internal(f"Python execution env {archive} cannot be unpacked: {error}") from None

    def _unpack(self, file: BinaryIO, folder: Path, digest: str) -> None:
        """Unpack an archive into `folder`. A failed attempt leaves no `folder`."""
        partial = folder.with_suffix(".partial")
        if partial.exists():  # left behind if a server was killed
            shutil.rmtree(partial)
        try:
            partial.mkdir()
            if unpack(file, partial, self._limits) != digest:
                raise ArchiveError("found a file that changes; expected no change")
            partial.rename(folder)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise

    def _cache_folder(self) -> Path:
        """Create the cache's folder and return it. Raises OSError."""
        cache = self._cache
        if cache is None:
            home = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
            cache = Path(home) / "reference_server" / "environments"
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        if cache.stat().st_uid != os.getuid():  # another user could replace environments
            raise PermissionError(
                f"{cache} belongs to another user; set XDG_CACHE_HOME to a folder of this user"
            )
        return cache


def _interpreter(folder: Path) -> Path:
    """Return the environment's Python or, as in Triton, the server's if it has no Python."""
    for name in _PYTHONS:
        path = folder / "bin" / name
        if path.exists():
            return path
        if path.is_symlink():
            raise internal(
                f"Python execution env {folder}: found bin/{name}, a link to {path.readlink()}, "
                "which does not exist; expected an interpreter. Pack the environment with "
                "conda-pack, or install this Python."
            )
    log.warning(
        "Python execution env %s: found no bin/python; the model runs with the server's Python",
        folder,
    )
    return Path(sys.executable)


def _check(environment: Environment) -> None:
    """Check that the code of the child process can run. Raises ServerError."""
    where = f"Python execution env {environment.folder}"
    try:
        done = subprocess.run(
            environment.command("-c", _PROBE),
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=_PROBE_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise internal(
            f"{where}: bin/activate and Python took longer than {_PROBE_LIMIT_S:g} s. Run them in "
            "a shell to find the cause."
        ) from None
    except OSError as error:
        raise internal(f"{where}: bin/activate cannot be run: {error}") from None
    errors = done.stderr.decode(errors="replace").strip()[-_SHOWN:]
    if done.returncode in _CANNOT_EXECUTE:
        raise internal(f"{where}: {environment.python} cannot run on this machine: {errors}")
    try:
        implementation, version, numpy = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        raise internal(
            f"{where}: bin/activate or Python failed with code {done.returncode}: {errors}"
        ) from None
    if implementation != "CPython" or tuple(version) < _OLDEST_PYTHON:
        raise internal(
            f"{where}: found {implementation} {_dotted(version)}; expected CPython "
            f"{_dotted(_OLDEST_PYTHON)} or later"
        )
    if numpy is None or tuple(map(int, numpy.split(".")[:2])) < _OLDEST_NUMPY:
        raise internal(
            f"{where}: found {'no NumPy' if numpy is None else f'NumPy {numpy}'}; expected NumPy "
            f"{_dotted(_OLDEST_NUMPY)} or later. Install it in the environment."
        )


def _dotted(version: Sequence[int]) -> str:
    return ".".join(map(str, version))
