"""Keeps the measured cost of executions for the next start, in a file per model and machine."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import threading
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Final

from ge_runtime.batching.cost import LiveCost
from ge_runtime.components import engines_on
from ge_runtime.config import RuntimeConfig
from ge_runtime.engines.artifact import Artifact

_log = logging.getLogger(__name__)


class KeptCosts:
    """The costs of one model on one machine, in a file. For one thread."""

    def __init__(self, file: CacheFile, terms: tuple[tuple[str, ...], ...]) -> None:
        self._file = file
        self._terms = terms

    @classmethod
    def of(
        cls,
        config: RuntimeConfig,
        artifacts: Sequence[Artifact],
        terms: tuple[tuple[str, ...], ...],
        version_dir: Path,
        hardware: str,
        cores: int,
    ) -> KeptCosts | None:
        """Return a model's kept costs; None if config.pbtxt gives the cost, or without a folder.

        terms: see CostModel. hardware: description of the device. cores: of this process.
        """
        folder = cache_folder(config.cost_cache, version_dir)
        if config.cost is not None or folder is None:
            return None
        try:
            content = content_digest([artifact.path for artifact in artifacts])
        except OSError as error:  # the engine has opened the artifact, but it is not a file
            _log.info("%s: costs of executions are not kept: %s", config.model, error)
            return None
        subject = {
            "content": content,
            "engines": ", ".join(_library(artifact, config) for artifact in artifacts),
            "devices": ", ".join(config.devices),
            "hardware": hardware,
            "placement": "local" if config.service_share is None else "service",
            "processor": processor(),
            "cores": str(cores),
            "threads": f"{'1 to ' * config.adapts_threads}{config.intra_op_threads}",
            "terms": json.dumps(terms),
            "packing": config.packing or "",
        }
        return cls(CacheFile(folder, config.model, subject), terms)

    @property
    def path(self) -> Path:
        """The path of the file."""
        return self._file.path

    def load(self) -> LiveCost | None:
        """Return the costs of an earlier start; None if there are no valid costs."""
        data = self._file.load()
        if data is None:
            return None
        try:
            return LiveCost.of_json(data, self._terms)
        except ValueError as error:
            self._file.ignored(error)
            return None

    def save(self, costs: LiveCost) -> None:
        """Write the costs."""
        learned = costs.as_json()
        if learned is not None:
            self._file.save(learned)


def _library(artifact: Artifact, config: RuntimeConfig) -> str:
    requires = engines_on(config.device_kind)[artifact.engine].requires
    for name in (requires.name, requires.module):
        try:
            return f"{artifact.engine} {metadata.version(name)}"
        except (metadata.PackageNotFoundError, ValueError):  # ValueError for an empty name
            continue
    return artifact.engine


def cores_of_process() -> int:
    """Return the number of cores that this process may use; the machine may have more."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


CACHE_VARIABLE: Final = "GE_RUNTIME_CACHE"
"""The environment variable for a folder of caches that replaces the user's folder."""

_FORMAT: Final = 1
_PART_BYTES: Final = 2**20


def cache_folder(
    setting: str, version_dir: Path, environment: Mapping[str, str] = os.environ
) -> Path | None:
    """Return the folder for the parameter `cost_cache`, or None.

    setting: "auto", "off", or a folder, relative to the version folder.
    """
    if setting == "off":
        return None
    if setting != "auto":
        return version_dir / setting
    root = cache_root(environment)
    return root and root / "costs"


def cache_root(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return the folder of all caches; None if the environment names none."""
    if named := environment.get(CACHE_VARIABLE):
        return Path(named)
    if named := environment.get("XDG_CACHE_HOME"):
        return Path(named) / "ge_runtime"
    home = environment.get("HOME")  # not from the user database: servers may have no entry
    return Path(home) / ".cache" / "ge_runtime" if home else None


def processor() -> str:
    """Return the model name of this machine's processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # no Linux
        lines = []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.processor() or platform.machine())


def content_digest(paths: Sequence[Path]) -> str:
    """Return a digest of these files' contents in this order. Raises OSError."""
    digest = hashlib.sha256()
    for path in paths:
        own = hashlib.sha256()
        # Not memory-mapped: truncation of a mapped file would kill the process.
        with path.open("rb", buffering=0) as file:
            while part := file.read(_PART_BYTES):
                own.update(part)
        digest.update(own.digest())
    return digest.hexdigest()


class CacheFile:
    """The file of one model on one machine. Never raises: a load must not fail because of it."""

    def __init__(
        self,
        folder: Path,
        model: str,
        subject: Mapping[str, str],
        content: str = "costs of executions",
    ) -> None:
        """Name the file; nothing is read or written.

        Args:
            folder: The folder of files with this content.
            model: The model, for log lines.
            subject: All that the content depends on; files with another subject are ignored.
            content: The content, for log lines.
        """
        self._model = model
        self._content = content
        self._subject = dict(subject)
        name = hashlib.sha256(json.dumps(self._subject, sort_keys=True).encode()).hexdigest()[:32]
        self.path = folder / f"{name}.json"

    def load(self) -> Mapping[str, object] | None:
        """Return the data that `save` wrote; None if it is missing or invalid."""
        try:
            data = json.loads(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            self.ignored(error)
            return None
        if not isinstance(data, Mapping) or data.get("format") != _FORMAT:
            self.ignored(f"expected a file of format {_FORMAT}")
            return None
        if data.get("subject") != self._subject:
            self.ignored("it belongs to another machine, model or library")
            return None
        return data

    def ignored(self, reason: object) -> None:
        """Log why the file is ignored."""
        _log.warning("%s: ignored %s: %s", self._model, self.path, reason)

    def save(self, learned: Mapping[str, object]) -> bool:
        """Write the file atomically: readers find the old or the new content.

        Returns False if it cannot be written.
        """
        data = {"format": _FORMAT, "model": self._model, "subject": self._subject, **learned}
        # Unique for each process and thread: instances of a model may save at the same time.
        unique = f"{os.getpid()}.{threading.get_ident()}"
        scratch = self.path.with_name(f".{self.path.name}.{unique}")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            try:
                scratch.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
                scratch.replace(self.path)
            finally:
                scratch.unlink(missing_ok=True)
        except OSError as error:
            # A read-only system is no error: the next start determines the content again.
            _log.info("%s: %s are not kept: %s", self._model, self._content, error)
            return False
        return True
