"""Find errors in the folders of model repositories: all at once, without running code of models.

The rules are those of the server. Errors that only show when a model is loaded, such as those of a
configuration changed by `auto_complete_config`, are left out or reported as warnings.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig as ConfigProto

from reference_server.checking.code import code_faults, completes_config
from reference_server.config import check, check_portable, complete, pbtxt, schema
from reference_server.config.rule import Faults
from reference_server.config.schema import ModelConfig
from reference_server.core.errors import NotHere, ServerError, invalid_arg, not_found
from reference_server.core.portability import ROWS
from reference_server.core.ports import SystemClock
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
    ModelId,
    Repositories,
    wanted_versions,
)
from reference_server.repository.polling import ModelSource
from reference_server.scheduling.warmup import sample_faults


class Level(enum.Enum):
    """ERROR if the model cannot be loaded, WARNING if it may fail to load."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Fault:
    """One error of a model, with its place and the server's text."""

    level: Level
    model: str
    place: Place
    message: str


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules that are checked: options of the server with the same names."""

    profile: TritonProfile = NEWEST
    backend_directory: Path = BACKEND_DIRECTORY
    config_name: str = ""
    strict_portable: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """The number of checked models, and the faults by model."""

    models: int
    faults: tuple[Fault, ...]

    @property
    def errors(self) -> int:
        """The number of faults that keep a model from being loaded."""
        return sum(fault.level is Level.ERROR for fault in self.faults)


def check_repositories(paths: Sequence[Path], rules: Rules) -> Result:
    """Return all faults in the repositories.

    Raises:
        ServerError: a repository is not a folder.
    """
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
        if name.name.startswith("."):  # the server does not load them by default
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
        #: The completed configuration if it can be served.
        self.config: ModelConfig | None = None
        #: True if the model may change its configuration.
        self.completes = False

    @property
    def is_open(self) -> bool:
        """True if not all tensors are known before the model is loaded."""
        proto = self.proto
        return proto is None or self.completes or not (proto.input and proto.output)

    def own_faults(self) -> list[Fault]:
        """Return the faults of the model without those of other models."""
        try:
            proto = pbtxt.read(self.file)
        except ServerError as error:
            place = place_in_text_error(self.file, error.message)
            return [Fault(Level.ERROR, self.folder.id, place, error.message)]
        complete.complete(proto, self.folder.path)
        self.proto = proto
        code_faults = self._code_faults(proto)
        profile = self._rules.profile
        found = self._faults(check.check_polled.faults(proto, profile))
        found += self._faults(check.check_directory.faults(proto, self.folder.name))
        found += self._faults(check.check_given.faults(proto))
        tensors = self._faults(check.check_loaded.faults(proto, profile))
        if self.completes:
            tensors = [replace(fault, level=Level.WARNING) for fault in tensors]
        found += tensors
        if not tensors and all(fault.level is Level.WARNING for fault in found):
            self.config = ModelConfig.from_proto(proto)
            found += self._file_faults(self.config)
        return code_faults + found + self._portability_faults(proto)

    def _portability_faults(self, proto: ConfigProto) -> list[Fault]:
        """Return what works here, but not on tritonserver 2.51."""
        level = Level.ERROR if self._rules.strict_portable else Level.WARNING
        return [
            Fault(
                level,
                self.folder.id,
                Place(self.file, line_of(self.file, finding.detail)),
                f"{ROWS[finding.key].text}: {finding.detail}",
            )
            for finding in check_portable.findings(proto, self.folder.path)
        ]

    def _faults(self, faults: Faults) -> list[Fault]:
        """Return faults of the configuration, each at the line that it names."""
        return [self.fault(fault) for fault in faults]

    def fault(self, error: ServerError) -> Fault:
        """Return a fault of the configuration."""
        text = error.message
        level = Level.WARNING if isinstance(error, NotHere) else Level.ERROR
        return Fault(level, self.folder.id, Place(self.file, line_of(self.file, text)), text)

    def _code_faults(self, proto: ConfigProto) -> list[Fault]:
        """Return the faults of versions and their code; set `completes`."""
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
                text = f"model file not found: '{artifact}'"
                found.append(self.fault(not_found(text)))
            self.completes = self.completes or completes_config(file)
            for fault in code_faults(file):
                level = Level.ERROR if fault.is_certain else Level.WARNING
                found.append(Fault(level, self.folder.id, Place(file, fault.line), fault.text))
        return found

    def _file_faults(self, config: ModelConfig) -> list[Fault]:
        """Return the faults of the other files that a configuration names."""
        found: list[Fault] = []
        sequences = config.sequence_batching
        readers: tuple[Callable[[], object], ...] = (
            lambda: read_labels(config, self.folder.path),
            lambda: sequences and read_initial_states(sequences, self.folder.path),
        )
        for read in readers:
            try:
                read()
            except ServerError as error:
                found.append(self.fault(error))
        samples = sample_faults(
            config.warmup, config.signature, self.folder.path, config.instance_names, SystemClock()
        )
        return found + [self.fault(error) for error in samples]


def _faults_between(models: Sequence[_Model]) -> Iterator[Fault]:
    """Yield the faults of ensembles whose models are missing or do not match."""
    graph = DependencyGraph()
    by_id = {model.folder.id: model for model in models}
    readable = {name: model for name, model in by_id.items() if model.proto is not None}
    for name, model in readable.items():
        assert model.proto is not None
        source = ModelSource(model.folder, model.proto, None, explicit=True)
        graph.put(name, source.steps, explicit=True)
    # Models that cannot be read exist, and are already reported.
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
            continue  # known only after loading

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


# -- the place of a fault in its file: the line of the parser's error, or of a quoted word

#: Line and column at the start of an error of Protobuf's text format.
_POSITION = re.compile(r": (\d+):\d+ : ")
_FIELD = re.compile(r"\b(\w+)\s*[:{\[]")
_WORD = re.compile(r"[\w-](?:[\w.-]*[\w-])?")
_QUOTED = re.compile(r"'([^']+)'")


@dataclass(frozen=True, slots=True)
class Place:
    """A file and a line in it, from 1; line 0 is the file as a whole."""

    file: Path
    line: int = 0


def place_in_text_error(file: Path, text: str) -> Place:
    """Return the place of an error of the text format's parser."""
    match = _POSITION.search(text)
    return Place(file, int(match[1]) if match else 0)


def line_of(file: Path, text: str) -> int:
    """Return the first line of a configuration that `text` is about; 0 if none is found.

    In this order: a quoted value or field, a value in the text, a field whose name is written with
    spaces (`dynamic batching`).
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return 0
    bare = [line.partition("#")[0] for line in lines]
    quoted = [re.escape(word) for word in _QUOTED.findall(text)]
    fields = {match for line in bare for match in _FIELD.findall(line)}
    spelled = [field for field in fields if "_" in field and field.replace("_", " ") in text]
    sought = (
        *(f'"{word}"' for word in quoted),
        *(rf"\b{word}\b" for word in quoted),
        # From the end: error texts go from the whole to the part.
        *(f'"{re.escape(word)}"' for word in reversed(_WORD.findall(text))),
        *(rf"\b{field}\b" for field in sorted(spelled, key=len, reverse=True)),
    )
    for pattern in sought:
        for number, line in enumerate(bare, 1):
            if re.search(pattern, line):
                return number
    return 0
