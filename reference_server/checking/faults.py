"""Looks for faults in the folders of model repositories: all at once, and no model's code is run.

The rules are those of the server. What only a load can tell, such as what a model's
`auto_complete_config` makes of its configuration, is left out or is a warning.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig as ConfigProto

from reference_server.checking.code import code_faults, completes_config
from reference_server.checking.places import Place, line_of, place_in_text_error
from reference_server.config import check, complete, pbtxt, schema
from reference_server.config.rule import Faults
from reference_server.config.schema import ModelConfig
from reference_server.core.errors import NotHere, ServerError, invalid_arg, not_found
from reference_server.core.profiles import NEWEST, TritonProfile
from reference_server.options import BACKEND_DIRECTORY
from reference_server.repository.ensembles import DependencyGraph, check_composing_models
from reference_server.repository.model_files import (
    SHIPPED,
    locate_code,
    read_initial_states,
    read_labels,
)
from reference_server.repository.model_folders import (
    DUPLICATE,
    ModelFolder,
    Repositories,
    wanted_versions,
)
from reference_server.repository.model_ids import ModelId
from reference_server.repository.polling import ModelSource
from reference_server.scheduling.warmup import read_samples


class Level(enum.Enum):
    """Whether the model cannot be loaded, or may be."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong: with which model, where, and in the server's words."""

    level: Level
    model: str
    place: Place
    message: str


@dataclass(frozen=True, slots=True)
class Rules:
    """What the models are to be loaded by: the options of the server of the same names."""

    profile: TritonProfile = NEWEST
    backend_directory: Path = BACKEND_DIRECTORY
    config_name: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """How many models were looked at, and what was found, model by model."""

    models: int
    faults: tuple[Fault, ...]

    @property
    def errors(self) -> int:
        """How many faults keep a model from being loaded."""
        return sum(fault.level is Level.ERROR for fault in self.faults)


def check_repositories(paths: Sequence[Path], rules: Rules) -> Result:
    """All that is wrong in the repositories. Raises ServerError if one of them is no folder."""
    found: list[Fault] = []
    models = [
        _Model(ModelFolder(name, folders[0]), rules) for name, folders in _folders(paths, found)
    ]
    for model in models:
        found += model.own_faults()
    found += _faults_between(models)
    ordered = sorted(dict.fromkeys(found), key=lambda fault: fault.model)
    return Result(len(models), tuple(ordered))


def _folders(paths: Sequence[Path], found: list[Fault]) -> Iterator[tuple[ModelId, list[Path]]]:
    for name, folders in Repositories(paths).directories().items():
        if name.name.startswith("."):  # a start without names leaves them out
            continue
        if len(folders) > 1:
            text = f"{DUPLICATE}: {', '.join(map(str, folders))}"
            found.append(Fault(Level.ERROR, name, Place(folders[0]), text))
        else:
            yield name, folders


class _Model:
    """One model's folder, as far as it can be read."""

    def __init__(self, folder: ModelFolder, rules: Rules) -> None:
        self.folder = folder
        self._rules = rules
        self.file = pbtxt.locate(folder.path, rules.config_name)
        #: The completed configuration; None if it cannot be read.
        self.proto: ConfigProto | None = None
        #: The same, if it can be served; what it does not say is left open.
        self.config: ModelConfig | None = None
        #: The model may change what its configuration says.
        self.completes = False

    @property
    def is_open(self) -> bool:
        """Whether the tensors are not all known before the model is loaded."""
        proto = self.proto
        return proto is None or self.completes or not (proto.input and proto.output)

    def own_faults(self) -> list[Fault]:
        """What is wrong with the model alone."""
        try:
            proto = pbtxt.read(self.file)
        except ServerError as error:
            place = place_in_text_error(self.file, error.message)
            return [Fault(Level.ERROR, self.folder.id, place, error.message)]
        complete.complete(proto, self.folder.path)
        self.proto = proto
        of_code = self._code_faults(proto)
        profile = self._rules.profile
        found = self._of(check.check_polled.faults(proto, profile))
        found += self._of(check.check_directory.faults(proto, self.folder.name))
        found += self._of(check.check_given.faults(proto))
        tensors = self._of(check.check_loaded.faults(proto, profile))
        if self.completes:
            tensors = [replace(fault, level=Level.WARNING) for fault in tensors]
        found += tensors
        if not tensors and all(fault.level is Level.WARNING for fault in found):
            self.config = ModelConfig.from_proto(proto)
            found += self._file_faults(self.config)
        return of_code + found

    def _of(self, faults: Faults) -> list[Fault]:
        """Faults of the configuration, each where its file names what the fault names."""
        return [self.fault(fault) for fault in faults]

    def fault(self, error: ServerError) -> Fault:
        """A fault of the configuration."""
        text = error.message
        level = Level.WARNING if isinstance(error, NotHere) else Level.ERROR
        return Fault(level, self.folder.id, Place(self.file, line_of(self.file, text)), text)

    def _code_faults(self, proto: ConfigProto) -> list[Fault]:
        """What is wrong with the versions and with the code in them; notes what the code can do."""
        versions = wanted_versions(schema.version_policy(proto), self.folder.versions())
        if not versions:
            return [
                self.fault(
                    invalid_arg(
                        "at least one version must be available under the version policy of model "
                        f"'{self.folder.name}'"
                    )
                )
            ]
        found: list[Fault] = []
        for version in versions:
            chosen = ConfigProto()
            chosen.CopyFrom(proto)
            folder = self.folder.path / str(version)
            try:
                file = locate_code(chosen, folder, self._rules.backend_directory)
            except ServerError as error:
                found.append(self.fault(error))
                continue
            if file is None:
                continue
            artifact = folder / proto.default_model_filename
            if file == SHIPPED and not artifact.exists():
                text = f"the model's file is not found: '{artifact}'"
                found.append(self.fault(not_found(text)))
            self.completes = self.completes or completes_config(file)
            found += [
                Fault(Level.ERROR, self.folder.id, place, text) for place, text in code_faults(file)
            ]
        return found

    def _file_faults(self, config: ModelConfig) -> list[Fault]:
        """What is wrong with the other files that a configuration names."""
        found: list[Fault] = []
        sequences = config.sequence_batching
        readers: tuple[Callable[[], object], ...] = (
            lambda: read_labels(config, self.folder.path),
            lambda: sequences and read_initial_states(sequences, self.folder.path),
            lambda: read_samples(config.warmup, config.signature, self.folder.path),
        )
        for read in readers:
            try:
                read()
            except ServerError as error:
                found.append(self.fault(error))
        return found


def _faults_between(models: Sequence[_Model]) -> Iterator[Fault]:
    """What ensembles ask of models that are not there, or that do not fit."""
    graph = DependencyGraph()
    by_id = {model.folder.id: model for model in models}
    readable = {name: model for name, model in by_id.items() if model.proto is not None}
    for name, model in readable.items():
        assert model.proto is not None
        source = ModelSource(model.folder, model.proto, None, explicit=True)
        graph.put(name, source.steps, explicit=True)
    # What cannot be read is there all the same, and told already.
    for name in by_id.keys() - readable.keys():
        graph.put(name, {}, explicit=True)
    errors = graph.errors(readable)
    for name, error in errors.items():
        yield by_id[name].fault(error)
    for name, model in readable.items():
        meant = graph.step_ids(name)
        if name in errors or model.config is None or not model.config.is_ensemble:
            continue
        if any(by_id[step].is_open or by_id[step].config is None for step in meant.values()):
            continue  # known once it is loaded

        def find(step: str, version: int, meant: dict[str, ModelId] = meant) -> ModelConfig:
            used = by_id[meant[step]]
            assert used.config is not None
            _require_version(used, version)
            return used.config

        try:
            check_composing_models(model.config, find)
        except ServerError as error:
            yield model.fault(error)


def _require_version(model: _Model, version: int) -> None:
    assert model.proto is not None
    served = wanted_versions(schema.version_policy(model.proto), model.folder.versions())
    if version != -1 and version not in served:
        raise not_found(f"version {version} of '{model.folder.name}' is not served")
