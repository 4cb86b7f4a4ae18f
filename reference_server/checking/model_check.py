"""Finds all errors in one model's folder, without running the model's code.

The rules are those of the server. Errors that only show when a model is loaded, such as those of a
configuration changed by `auto_complete_config`, are left out or reported as warnings.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from google.protobuf.message import Message
from tritonclient.grpc.model_config_pb2 import ModelConfig as ConfigProto

from reference_server.backends import environments
from reference_server.checking import here, layout
from reference_server.checking.code import code_faults, completes_config, tensor_uses
from reference_server.checking.config_text import (
    PLACEHOLDER,
    WHOLE_FILE,
    ConfigText,
    Position,
    close_name,
    placeholder_hint,
)
from reference_server.config import check, check_portable, complete, pbtxt, schema
from reference_server.config.complete import PLATFORMS
from reference_server.config.schema import ModelConfig
from reference_server.core.errors import FieldPath, NotHere, ServerError, invalid_arg, not_found
from reference_server.core.paths import is_within
from reference_server.core.portability import ROWS
from reference_server.core.ports import SystemClock
from reference_server.core.profiles import NEWEST, TritonProfile
from reference_server.options import BACKEND_DIRECTORY
from reference_server.repository.model_files import (
    KNOWN_BACKENDS,
    SHIPPED,
    locate_code,
    read_initial_states,
    read_labels,
    use_stub,
)
from reference_server.repository.model_folders import ModelFolder, wanted_versions
from reference_server.scheduling.warmup import sample_faults


class Level(enum.Enum):
    """ERROR if the model cannot be loaded, WARNING if it may fail to load."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Place:
    """A file and a position in it."""

    file: Path
    position: Position = WHOLE_FILE


@dataclass(frozen=True, slots=True)
class Fault:
    """One error of a model, with its place, the server's text, and the fix ("" if unknown)."""

    level: Level
    model: str
    place: Place
    message: str
    hint: str = ""

    @property
    def text(self) -> str:
        """The message and the fix."""
        return f"{self.message} - {self.hint}" if self.hint else self.message


@dataclass(frozen=True, slots=True)
class Rules:
    """The settings of a check; the server has options with the same names."""

    profile: TritonProfile = NEWEST
    backend_directory: Path = BACKEND_DIRECTORY
    config_name: str = ""
    strict_portable: bool = False
    strict: bool = False
    """True to report warnings as errors."""
    here: bool = False
    """True to report what this machine lacks, as errors."""
    stubs: Sequence[tuple[str, str]] = ()
    """Pairs of a model and the MODULE:FUNCTION that replaces it (`--stub-model`)."""


class ModelCheck:
    """One model's folder, as far as it can be read."""

    def __init__(self, folder: ModelFolder, rules: Rules) -> None:
        self.folder = folder
        self._rules = rules
        self.file = pbtxt.locate(folder.path, rules.config_name)
        self._text = ConfigText(self.file)
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

    @property
    def _stub(self) -> str | None:
        return dict(self._rules.stubs).get(self.folder.name)

    @property
    def _machine_level(self) -> Level:
        """The level of a requirement that this machine lacks, and another machine may meet."""
        return Level.ERROR if self._rules.here else Level.WARNING

    def own_faults(self) -> list[Fault]:
        """Return the faults of this model, without faults that involve other models."""
        proto, found = self._read()
        known = ConfigProto() if proto is None else proto
        complete.complete(known, self.folder.path)
        self.proto = proto
        if proto is not None or known.backend == "python":
            located, files, faults = self._code_faults(known)
            found += faults
            if self._rules.here and self._stub is None:
                found += self._machine_faults(known, files)
            if proto is not None:
                found += self._config_faults(proto, located)
                found += self._tensor_faults(proto, files)
                self._add_placeholders(proto, found)
        if self._stub is not None:
            return found
        for fault in layout.file_faults(self.folder.path, self.file, known.default_model_filename):
            is_certain = fault.is_certain or (self._rules.here and layout.is_pointer(fault.file))
            fault = fault._replace(is_certain=is_certain)
            _add_file_fault(found, file_fault(self.folder.id, fault))
        return found

    def _read(self) -> tuple[ConfigProto | None, list[Fault]]:
        """Return the configuration, None if it cannot be read, and the faults of its text."""
        try:
            return pbtxt.read(self.file), []
        except ServerError as error:
            proto, faults = self._text.read()
            if not faults:
                return None, [self.fault(error)]
            return proto, [
                Fault(
                    Level.ERROR,
                    self.folder.id,
                    Place(self.file, fault.position),
                    fault.text,
                    fault.hint,
                )
                for fault in faults
            ]

    def _config_faults(self, proto: ConfigProto, located: ConfigProto) -> list[Fault]:
        """Return the faults of a completed configuration.

        Args:
            proto: The configuration.
            located: The configuration as the server changes it for its backend.
        """
        profile = self._rules.profile
        errors = [
            *check.check_polled.faults(proto, profile),
            *check.check_directory.faults(proto, self.folder.name),
            *check.check_given.faults(located),
        ]
        tensors = list(check.check_loaded.faults(proto, profile))
        found = [self.fault(error) for error in errors]
        level = Level.WARNING if self.completes else Level.ERROR
        found += [replace(self.fault(error), level=level) for error in tensors]
        certain = [error for error in errors if not isinstance(error, NotHere)]
        if not certain and not tensors:
            self.config = ModelConfig.from_proto(proto)
        found += self._file_faults(self._without(proto, [*certain, *tensors]))
        found += self._environment_faults(proto)
        found += self._portability_faults(proto)
        found += [
            replace(self._warning(path, text), hint="rename or remove one of them")
            for path, text in _duplicates(proto)
        ]
        return found

    def _without(self, proto: ConfigProto, errors: Sequence[ServerError]) -> ModelConfig:
        """Return the configuration without faulty parts, whose files cannot be checked."""
        rest = ConfigProto()
        rest.CopyFrom(proto)
        fields = {error.path[0] for error in errors if error.path}
        wrong = {error.path[:2] for error in errors}
        if self.is_open or fields & {"input", "output", "max_batch_size", "instance_group"}:
            rest.ClearField("model_warmup")
        for tensors in ("input", "output"):
            entries = getattr(rest, tensors)
            for index in reversed(range(len(entries))):
                if (tensors, index) in wrong:
                    del entries[index]
        for field in fields - {"input", "output", "name"}:
            rest.ClearField(str(field))
        return ModelConfig.from_proto(rest)

    def _environment_faults(self, proto: ConfigProto) -> list[Fault]:
        """Return the fault of the model's own Python environment, if there is one."""
        value = schema.parameter(proto, environments.PARAMETER)
        path = environments.expanded(value, self.folder.path)
        if not path:
            return []
        try:
            found = environments.located(path)
            if found.is_dir():
                environments.check_folder(found)
        except ServerError as error:
            error.path = ("parameters", environments.PARAMETER)
            is_elsewhere = not is_within(self.folder.path, Path(path))
            level = self._machine_level if is_elsewhere else Level.ERROR
            return [replace(self.fault(error), level=level)]
        return []

    def _portability_faults(self, proto: ConfigProto) -> list[Fault]:
        """Return what works here, but not on tritonserver 2.51."""
        level = Level.ERROR if self._rules.strict_portable else Level.WARNING
        return [
            replace(
                self._warning(finding.path, f"{ROWS[finding.key].text}: {finding.detail}"),
                level=level,
            )
            for finding in check_portable.findings(proto, self.folder.path)
        ]

    def fault(self, error: ServerError, hint: str = "") -> Fault:
        """Return a fault of the configuration."""
        level = self._machine_level if isinstance(error, NotHere) else Level.ERROR
        hint = hint or error.hint or self._name_hint(error)
        return replace(self._warning(error.path, error.message), level=level, hint=hint)

    def _warning(self, path: FieldPath, text: str) -> Fault:
        position = self._text.position(path)
        if not position.line and path == ("backend",):  # derived from the platform
            position = self._text.position(("platform",))
        return Fault(Level.WARNING, self.folder.id, Place(self.file, position), text)

    def _name_hint(self, error: ServerError) -> str:
        """Return the hint for a missing or unknown backend or platform, or ""."""
        if self.proto is None:
            return ""
        if not (error.path or self.proto.backend or self.proto.platform):
            is_ensemble = self.proto.HasField("ensemble_scheduling")
            return 'write `platform: "ensemble"`' if is_ensemble else 'write `backend: "python"`'
        if error.path == ("backend",) and self.proto.backend not in KNOWN_BACKENDS:
            return close_name(self.proto.backend, KNOWN_BACKENDS)
        if error.path == ("platform",) and self.proto.platform not in PLATFORMS:
            return close_name(self.proto.platform, PLATFORMS)
        return ""

    def _code_faults(self, proto: ConfigProto) -> tuple[ConfigProto, list[Path], list[Fault]]:
        """Check versions and code.

        Returns the configuration as changed for its backend, the files of code, and the faults.
        Sets `completes`.
        """
        chosen = ConfigProto()
        chosen.CopyFrom(proto)
        versions = wanted_versions(schema.version_policy(proto), self.folder.versions())
        if not versions:
            none = invalid_arg(
                "at least one version must be available under the version policy of model "
                f"'{self.folder.name}'",
                "version_policy",
            )
            present = self.folder.versions()
            hint = "" if present else layout.no_version_hint(self.folder.path)
            with contextlib.suppress(ServerError):  # may move instances to the CPU
                locate_code(chosen, self.folder.path / "1", self._rules.backend_directory)
            return chosen, [], [self.fault(none, hint)]
        if self._stub is not None:
            use_stub(chosen, self._stub)
            text = here.stub_fault(self._stub) if self._rules.here else ""
            return chosen, [], [self.fault(NotHere(text))] if text else []
        found: list[Fault] = []
        files: list[Path] = []
        for version in versions:
            chosen.CopyFrom(proto)
            folder = self.folder.path / str(version)
            try:
                file = locate_code(chosen, folder, self._rules.backend_directory)
            except ServerError as error:
                if proto.backend:  # otherwise `check_polled` reports it
                    found.append(self.fault(error))
                continue
            if file is None:
                continue
            artifact = folder / proto.default_model_filename
            if file == SHIPPED and not artifact.exists():
                missing = not_found(f"model file not found: '{artifact}'")
                missing.path = ("backend",)
                found.append(self.fault(missing, layout.misplaced_code_hint(artifact)))
            files.append(file)
            self.completes = self.completes or completes_config(file)
            found += [
                Fault(
                    Level.ERROR if fault.is_certain else Level.WARNING,
                    self.folder.id,
                    Place(fault.file or file, Position(fault.line, fault.column)),
                    fault.text,
                    fault.hint,
                )
                for fault in code_faults(
                    file, is_decoupled=proto.model_transaction_policy.decoupled
                )
            ]
        return chosen, files, found

    def _machine_faults(self, proto: ConfigProto, files: Sequence[Path]) -> Iterator[Fault]:
        """Yield the requirements of the model that this machine does not meet."""
        model, folder = self.folder.id, self.folder.path
        value = environments.expanded(schema.parameter(proto, environments.PARAMETER), folder)
        environment = Path(value) if value else None
        for file in dict.fromkeys(files):
            if file == SHIPPED:
                if needed := here.backend_fault(proto):
                    text, hint = needed
                    missing = self._warning(("backend",), text)
                    yield replace(missing, hint=hint, level=Level.ERROR)
            elif not value or (environment and environment.is_dir()):
                for fault in here.MachineUse(file, environment).faults:
                    level = Level.ERROR if fault.is_certain else Level.WARNING
                    place = Place(fault.file or file, Position(fault.line, fault.column))
                    yield Fault(level, model, place, fault.text, fault.hint)
        versions = wanted_versions(schema.version_policy(proto), self.folder.versions())
        graphs = [path for version in versions for path in (folder / str(version)).glob("*")]
        if SHIPPED in files:
            for version in versions:
                for wrong in here.file_faults(folder / str(version)):
                    yield file_fault(model, wrong)
        for path, text, hint in here.parameter_faults(proto):
            yield replace(self._warning(path, text), hint=hint, level=Level.ERROR)
        instances = sum(group.count for group in proto.instance_group)
        if text := here.memory_fault(graphs, instances):
            fewer = "use fewer instances, or a larger machine"
            yield replace(self._warning((), text), hint=fewer, level=Level.ERROR)

    def _file_faults(self, config: ModelConfig) -> list[Fault]:
        """Return the faults of labels, states and samples that a configuration reads from files."""
        folder = self.folder.path
        readers: list[tuple[FieldPath, Callable[[], object]]] = []
        signature, sequences = config.signature, config.sequence_batching
        for output in signature.outputs:
            labels = replace(config, signature=replace(signature, outputs=(output,)))
            place = ("output", self._index("output", output.name), "label_filename")
            readers.append((place, functools.partial(read_labels, labels, folder)))
        for index, state in enumerate(sequences.states if sequences else ()):
            assert sequences is not None
            one = replace(sequences, states=(state,))
            data = ("sequence_batching", "state", index, "initial_state", 0, "data_file")
            readers.append((data, functools.partial(read_initial_states, one, folder)))
        found: list[Fault] = []
        for path, read in readers:
            try:
                read()
            except ServerError as error:
                error.path = path
                found.append(self.fault(error))
        samples = sample_faults(
            config.warmup, config.signature, folder, config.instance_names, SystemClock()
        )
        assert self.proto is not None
        # Samples without a batch size are not run.
        used = [index for index, each in enumerate(self.proto.model_warmup) if each.batch_size]
        for failed in samples:
            field, sample, *rest = failed.path
            assert isinstance(sample, int)
            failed.path = (field, used[sample], *rest)
            found.append(self.fault(failed))
        return found

    def _index(self, field: str, name: str) -> int:
        names = [entry.name for entry in getattr(self.proto, field)]
        return names.index(name)

    def _tensor_faults(self, proto: ConfigProto, files: Collection[Path]) -> Iterator[Fault]:
        """Yield the tensors that the model's code uses and its configuration lacks."""
        if self.is_open or proto.backend != "python":
            return
        states = proto.sequence_batching.state
        controls = proto.sequence_batching.control_input
        names = {
            True: {entry.name for entry in (*proto.input, *controls)}
            | {name for made in proto.batch_input for name in made.target_name}
            | {state.input_name for state in states},
            False: {entry.name for entry in proto.output} | {state.output_name for state in states},
        }
        for file in files:
            for use in tensor_uses(file):
                if use.name not in names[use.is_input]:
                    kind = "input" if use.is_input else "output"
                    text = f"the code uses the {kind} '{use.name}', which {self.file.name} lacks"
                    hint = close_name(use.name, names[use.is_input]) or f"declare the {kind}"
                    position = Position(use.line, use.column)
                    place = Place(file, position)
                    yield Fault(Level.WARNING, self.folder.id, place, text, hint)

    def _add_placeholders(self, proto: ConfigProto, found: list[Fault]) -> None:
        """Report unfilled templates: as the hint of a fault at the position, or as a new fault."""
        for path, text in _strings(proto):
            placeholder = PLACEHOLDER.search(text)
            if placeholder is None:
                continue
            hint = placeholder_hint(placeholder[0])
            fault = replace(
                self._warning(path, f"{'.'.join(map(str, path))}: found '{text}'"),
                hint=hint,
                level=self._machine_level,
            )
            places = [each.place for each in found]
            if fault.place in places:
                index = places.index(fault.place)
                found[index] = replace(found[index], hint=hint)
            elif fault.place.position.line:  # otherwise the text is not in the file
                found.append(fault)


def file_fault(model: str, fault: layout.FileFault) -> Fault:
    """Return a fault of a file as a fault of the model."""
    level = Level.ERROR if fault.is_certain else Level.WARNING
    return Fault(level, model, Place(fault.file), fault.text, fault.hint)


def _add_file_fault(found: list[Fault], fault: Fault) -> None:
    """Add a fault of a file, or set its text as the hint of a fault that names the file."""
    named = re.compile(rf"{re.escape(str(fault.place.file))}(?![\w./-])")
    for index, other in enumerate(found):
        if other.place.file == fault.place.file or named.search(other.message):
            found[index] = replace(other, hint=fault.text)
            return
    found.append(fault)


def _duplicates(proto: ConfigProto) -> Iterator[tuple[FieldPath, str]]:
    """Yield tensors that are declared twice. Triton accepts them."""
    for field in ("input", "output"):
        names: set[str] = set()
        for index, entry in enumerate(getattr(proto, field)):
            if entry.name in names and entry.name:
                yield (field, index, "name"), f"model {field} '{entry.name}' is declared twice"
            names.add(entry.name)


def _strings(message: Message, path: FieldPath = ()) -> Iterator[tuple[FieldPath, str]]:
    """Yield the path and value of each string in a message."""
    for field, value in message.ListFields():
        place = (*path, field.name)
        parts: Iterable[tuple[FieldPath, object]]
        if field.message_type and field.message_type.GetOptions().map_entry:
            parts = (((*place, key, "value"), value[key]) for key in value)
        elif isinstance(value, (str, bytes, Message)) or not isinstance(value, Iterable):
            parts = [(place, value)]
        else:
            parts = (((*place, index), part) for index, part in enumerate(value))
        for where, part in parts:
            if isinstance(part, str):
                yield where, part
            elif isinstance(part, Message):
                yield from _strings(part, where)
