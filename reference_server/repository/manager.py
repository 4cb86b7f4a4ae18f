"""The models of the repositories: load them all at start, find one, close them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig as ConfigProto

from reference_server.config import check, schema
from reference_server.config.schema import ModelConfig
from reference_server.core.errors import ServerError, internal, invalid_arg, not_found
from reference_server.core.request import LATEST
from reference_server.repository import ensembles, scan
from reference_server.repository.loader import ModelLoader
from reference_server.repository.scan import ModelFolder
from reference_server.repository.served import ServedModel, State, VersionStatus

log = logging.getLogger(__name__)


class Repository:
    """All models of a server, loaded once at start.

    `load` before anything else. `find` and the listings may be called from any thread.
    """

    def __init__(
        self, repositories: Sequence[Path], loader: ModelLoader, load_threads: int
    ) -> None:
        self._repositories = tuple(repositories)
        self._loader = loader
        self._load_threads = load_threads
        self._served: dict[str, dict[int, ServedModel]] = {}
        self._latest: dict[str, ServedModel] = {}
        self._statuses: list[VersionStatus] = []

    def load(self) -> None:
        """Load every model: first those that stand alone, side by side, then the ensembles.

        A model that cannot be loaded is logged and keeps its reason; the others go on. Raises
        ServerError only if a repository itself cannot be read.
        """
        alone: list[tuple[ModelFolder, ConfigProto]] = []
        composed: dict[str, tuple[ModelFolder, ConfigProto]] = {}
        for folder in scan.scan(self._repositories):
            try:
                config = self._loader.read_config(folder)
            except ServerError as error:
                log.error("Poll failed for model directory '%s': %s", folder.name, error)
                self._statuses.append(_unavailable(folder.name, None, error))
                continue
            if config.platform == "ensemble":
                composed[folder.name] = folder, config
            else:
                alone.append((folder, config))
        with ThreadPoolExecutor(self._load_threads, "load") as pool:
            list(pool.map(lambda found: self._load_model(*found), alone))
        self._load_ensembles(composed)

    def _load_ensembles(self, composed: dict[str, tuple[ModelFolder, ConfigProto]]) -> None:
        steps = {
            name: [step.model_name for step in config.ensemble_scheduling.step]
            for name, (_, config) in composed.items()
        }
        order, circular = ensembles.load_order(steps)
        for name, error in circular.items():
            self._failed(name, None, error)
        for name in order:
            folder, config = composed[name]
            try:
                check.check_loaded(config)
                ensembles.check_ensemble(ModelConfig.from_proto(config), self._config_of)
            except ServerError as error:
                self._failed(name, None, error)
            else:
                self._load_model(folder, config)

    def _load_model(self, folder: ModelFolder, config: ConfigProto) -> None:
        name = folder.name
        self._served[name] = {}
        versions = scan.wanted(schema.version_policy(config), folder.versions())
        if not versions:
            self._failed(
                name,
                None,
                invalid_arg(
                    "at least one version must be available under the version policy of "
                    f"model '{name}'"
                ),
            )
        for version in versions:
            log.info("loading: %s:%d", name, version)
            try:
                served = self._loader.load(folder, config, version, self.find)
            except ServerError as error:
                self._failed(name, version, error)
                continue
            self._served[name][version] = self._latest[name] = served
            self._statuses.append(VersionStatus(name, version, State.READY))
            log.info("successfully loaded '%s'", name)

    def _failed(self, name: str, version: int | None, error: ServerError) -> None:
        self._statuses.append(_unavailable(name, version, error))
        shown = f"'{name}'" if version is None else f"'{name}' version {version}"
        log.error("failed to load %s: %s", shown, error.described())

    def _config_of(self, name: str, version: int) -> ModelConfig:
        return self.find(name, version).config

    def find(self, name: str, version: int = LATEST) -> ServedModel:
        """The loaded model; LATEST is its greatest version. Raises ServerError NOT_FOUND."""
        if version == LATEST:
            served = self._latest.get(name)
            if served is not None:
                return served
        versions = self._served.get(name)
        if versions is None:
            raise not_found(f"Request for unknown model: '{name}' is not found")
        if not versions:
            raise not_found(f"Request for unknown model: '{name}' has no available versions")
        try:
            return versions[version]
        except KeyError:
            raise not_found(
                f"Request for unknown model: '{name}' version {version} is not found"
            ) from None

    def versions(self, name: str) -> list[ServedModel]:
        """The loaded versions of a model, ascending; none if it is unknown or failed."""
        return [served for _, served in sorted(self._served.get(name, {}).items())]

    def all(self) -> list[ServedModel]:
        """All loaded versions of all models, by name, then version."""
        return [served for name in sorted(self._served) for served in self.versions(name)]

    def statuses(self) -> list[VersionStatus]:
        """What became of each model version, by name, then version."""
        return sorted(self._statuses, key=lambda status: (status.model, status.version or 0))

    @property
    def is_complete(self) -> bool:
        """True if nothing that was to be loaded has failed."""
        return all(status.state is State.READY for status in self._statuses)

    def close(self) -> None:
        """Answer what was taken, then finalize all models: ensembles first, then the others."""
        loaded = self.all()
        for served in sorted(loaded, key=lambda served: not served.config.is_ensemble):
            served.scheduler.close()
            log.info("successfully unloaded '%s' version %d", served.config.name, served.version)


def _unavailable(name: str, version: int | None, error: ServerError) -> VersionStatus:
    return VersionStatus(name, version, State.UNAVAILABLE, error.described())


def check_all_loaded(repository: Repository) -> None:
    """Raise the error that ends a start with `--exit-on-error=true` if a model failed."""
    if not repository.is_complete:
        raise internal("failed to load all models")
