"""What executions of a model cost on this machine, from an earlier start to the next."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from ge_runtime.batching.live_cost import LiveCost
from ge_runtime.components import engines_on
from ge_runtime.config import RuntimeConfig
from ge_runtime.engines.artifact import Artifact
from ge_runtime.planning.cost_cache import CostFile, cache_folder, content_digest, processor

_log = logging.getLogger(__name__)


class KeptCosts:
    """The file of one model on one machine, and what it says in terms of costs."""

    def __init__(self, file: CostFile, terms: tuple[tuple[str, ...], ...]) -> None:
        self._file = file
        self._terms = terms

    @classmethod
    def of(
        cls,
        config: RuntimeConfig,
        artifacts: Sequence[Artifact],
        terms: tuple[tuple[str, ...], ...],
        *,
        version_dir: Path,
        hardware: str,
        cores: int,
    ) -> KeptCosts | None:
        """None if nothing is to be kept: the cost is given, or there is no folder.

        terms: see CostModel; hardware: what the device is; cores: those of this process.
        """
        folder = cache_folder(config.cost_cache, version_dir)
        if config.cost is not None or folder is None:
            return None
        try:
            content = content_digest([artifact.path for artifact in artifacts])
        except OSError as error:  # what is no file: its engine has opened it all the same
            _log.info("%s: the cost of executions is not kept: %s", config.model, error)
            return None
        subject = {
            "content": content,
            "engines": ", ".join(_library(artifact, config) for artifact in artifacts),
            "devices": ", ".join(config.devices),
            "hardware": hardware,
            "placement": "local" if config.service_share is None else "service",
            "processor": processor(),
            "cores": str(cores),
            "threads": str(config.intra_op_threads),
            "terms": json.dumps(terms),
            "packing": config.packing or "",
        }
        return cls(CostFile(folder, config.model, subject), terms)

    @property
    def path(self) -> Path:
        """The file."""
        return self._file.path

    def load(self) -> LiveCost | None:
        """What an earlier start learned; None if nothing sound is kept."""
        data = self._file.load()
        if data is None:
            return None
        try:
            return LiveCost.of_json(data, self._terms)
        except ValueError as error:
            self._file.ignored(error)
            return None

    def save(self, costs: LiveCost) -> None:
        """Keep what was learned."""
        learned = costs.as_json()
        if learned is not None:
            self._file.save(learned)


def _library(artifact: Artifact, config: RuntimeConfig) -> str:
    """The engine and the version of what executes."""
    requires = engines_on(config.device_kind)[artifact.engine].requires
    for name in (requires.name, requires.module):
        try:
            return f"{artifact.engine} {metadata.version(name)}"
        except (metadata.PackageNotFoundError, ValueError):  # the latter of an empty name
            continue
    return artifact.engine


def cores_of_process() -> int:
    """The cores this process may use, which can be fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
