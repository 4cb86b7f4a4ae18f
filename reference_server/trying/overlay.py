"""A copy of a model repository that can be changed: folders are new, large files are links."""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig as ConfigProto
from tritonclient.grpc.model_config_pb2 import ModelInput, ModelInstanceGroup, ModelOutput

from reference_server.checking import here, layout
from reference_server.config import complete, schema
from reference_server.config.pbtxt import FILE_NAME
from reference_server.core.errors import ServerError
from reference_server.options import BACKEND_DIRECTORY
from reference_server.repository.model_files import SHIPPED, locate_code
from reference_server.repository.model_folders import ModelFolder, ModelId, wanted_versions
from reference_server.trying.roots import is_model, model_config
from reference_server.trying.templates import Values

log = logging.getLogger(__name__)

#: Larger files are links. Smaller ones are copies: code that writes into them changes no clone.
_COPIED = 1 << 20
_STAND_IN_CODE = SHIPPED.with_name("stand_in.py")
_MOST_FILES = 50_000
_EXPORT = "export the model to ONNX, or serve with --stub-model"
_PATH = re.compile(r"(?P<quote>[\"'])(?P<path>/[\w.+-]+(?:/[\w.+-]+)+/?)(?=[\"'])")
_CUDA = re.compile(r"([\"'])cuda(?::\d+)?\1")
_CUDA_CALL = re.compile(r"\.cuda\(\s*\)")


@dataclass(frozen=True, slots=True)
class Choices:
    """The options of `reference-server try` that change the copy."""

    values: Mapping[str, str] = field(default_factory=dict)
    """Values of placeholders (`--set`)."""
    maps: Mapping[str, Path] = field(default_factory=dict)
    """Absolute paths to the folders that replace them (`--map`)."""
    gpu_to_cpu: bool = True
    stand_ins: bool = True


@dataclass(slots=True)
class TriedModel:
    """One model of the copy."""

    name: str
    folder: Path
    source: Path | None
    config: ConfigProto | None = None
    """The configuration; None if it cannot be read, empty without a file."""
    notes: list[str] = field(default_factory=list)
    stand_in: str = ""
    """Why a stand-in replaces the model, or ""."""
    cure: str = ""
    """The cure for that, or for other faults of the code."""
    packages: list[str] = field(default_factory=list)
    """Missing Python packages."""

    @property
    def steps(self) -> Sequence[str]:
        """The models of an ensemble's steps."""
        steps = self.config.ensemble_scheduling.step if self.config else ()
        return [step.model_name for step in steps]


class Overlay:
    """The copy of a clone in which one model repository is prepared for this machine.

    Attributes:
        root: The folder of the prepared repository.
        clone: The copy of the clone; the working directory of its code.
        models: The prepared models, by name.
    """

    def __init__(self, clone: Path, root: Path, into: Path, choices: Choices) -> None:
        """Copy and prepare the repository `root` of `clone`."""
        self.clone = into / "clone"
        self.root = self.clone / root.relative_to(clone)
        self.models: dict[str, TriedModel] = {}
        self._source = clone
        self._choices = choices
        self._values = Values(clone, choices.values)
        self._files = 0
        self._link_around(clone, root)
        for folder in layout.entries(root):
            if folder.is_dir() and folder.name[0] != "." and is_model(folder):
                self._add(folder)
        self._add_missing_steps()
        for model in self.models.values():
            self._derive_signature(model)
        self.mark()

    def keep_only(self, name: str) -> None:
        """Remove all models except one and the models of its steps."""
        kept: dict[str, None] = {}
        waiting = [name]
        while waiting:
            each = waiting.pop()
            if each in self.models and each not in kept:
                kept[each] = None
                waiting += self.models[each].steps
        for each in self.models.keys() - kept.keys():
            shutil.rmtree(self.models.pop(each).folder)

    # -- files

    def _link_around(self, clone: Path, root: Path) -> None:
        """Create the folders from the clone to the root, with links to everything beside them."""
        here_, there = clone, self.clone
        for part in (*root.relative_to(clone).parts, None):
            there.mkdir(parents=True, exist_ok=True)
            for path in layout.entries(here_):
                is_model_folder = part is None and path.is_dir() and is_model(path)
                if path.name not in (part, ".git") and not is_model_folder:
                    (there / path.name).symlink_to(path.absolute())
            if part is not None:
                here_, there = here_ / part, there / part

    def _copy(self, source: Path, target: Path) -> None:
        target.mkdir(parents=True, exist_ok=True)
        for path in layout.entries(source):
            new = target / path.name
            self._files += 1
            if path.is_symlink() and not path.exists():
                continue
            if path.is_dir() and self._files < _MOST_FILES and path.name != "__pycache__":
                self._copy(path, new)
            elif path.is_file() and path.stat().st_size <= _COPIED:
                shutil.copyfile(path, new)
            else:
                new.symlink_to(path.absolute())

    # -- models

    def _add(self, source: Path) -> None:
        model = TriedModel(source.name, self.root / source.name, source)
        self._copy(source, model.folder)
        model.config = self._read(model)
        if model.config is not None:
            self._rename(model)
            self._create_version(model)
            if self._choices.gpu_to_cpu:
                _move_to_cpu(model)
        self._change_code(model)
        self.models[model.name] = model
        if model.config is not None:
            model.stand_in, model.cure = _missing(model)
            self._write(model)

    def _read(self, model: TriedModel) -> ConfigProto | None:
        """Return the model's configuration with values for its placeholders, or None."""
        file = model_config(model.folder)
        config = ConfigProto()
        if file is None:
            return config
        if file.name != FILE_NAME:
            model.notes.append(f"{file.name} is taken for {FILE_NAME}")
        text = file.read_text(encoding="utf-8-sig", errors="replace")
        text, notes = self._values.fill(text, model.name)
        text, mapped = self._map(text)
        model.notes += [*notes, *mapped]
        try:
            text_format.Parse(text, config, allow_unknown_field=True)
        except text_format.ParseError as error:
            model.notes.append(f"{FILE_NAME} cannot be read: {error}")
            return None
        return config

    def _rename(self, model: TriedModel) -> None:
        """Give the folder the name that the configuration states, which Triton requires."""
        assert model.config is not None
        name = model.config.name
        if not name or name == model.name or "/" in name:
            return
        target = self.root / name
        if target.exists() or not name.strip("."):
            model.config.name = model.name
            model.notes.append(f"name '{name}' is changed to that of the folder")
            return
        model.notes.append(f"the folder '{model.name}' is named '{name}', as in {FILE_NAME}")
        model.folder.rename(target)
        model.name, model.folder = name, target

    def _create_version(self, model: TriedModel) -> None:
        assert model.config is not None
        versions = ModelFolder(ModelId(model.name), model.folder).versions()
        if versions and not wanted_versions(schema.version_policy(model.config), versions):
            model.config.ClearField("version_policy")
            model.notes.append("version_policy selects no version; it is left out")
        if versions:
            return
        folder = model.folder / "1"
        folder.mkdir()
        model.notes.append("the missing version folder '1' is created")
        for path in layout.entries(model.folder):
            if path.is_file() and path.name.startswith("model."):
                shutil.move(path, folder / path.name)
                model.notes.append(f"{path.name} is moved into it")

    def _change_code(self, model: TriedModel) -> None:
        """Map absolute paths in the code, and move its tensors to the CPU."""
        for file in model.folder.rglob("*.py"):
            if file.is_symlink():
                continue
            before = file.read_text(encoding="utf-8", errors="surrogateescape")
            text, notes = self._map(before)
            model.notes += [note for note in notes if note not in model.notes]
            if self._choices.gpu_to_cpu and not here.has_gpu():
                moved = _CUDA_CALL.sub(".cpu()", _CUDA.sub(r"\1cpu\1", text))
                if moved != text:
                    model.notes.append(f"'cuda' in {file.name} is changed to 'cpu'")
                text = moved
            if text != before:
                file.write_text(text, encoding="utf-8", errors="surrogateescape")

    def _map(self, text: str) -> tuple[str, list[str]]:
        """Replace absolute paths that do not exist here by the same places in the copy."""
        notes: list[str] = []

        def target(match: re.Match[str]) -> str:
            path = match["path"]
            found = self._place(path)
            if found is None:
                return match[0]
            notes.append(f"path {path} is mapped to {found}")
            return f"{match['quote']}{found}"

        return _PATH.sub(target, text), list(dict.fromkeys(notes))

    def _place(self, path: str) -> Path | None:
        for prefix, folder in self._choices.maps.items():
            if path == prefix or path.startswith(f"{prefix.rstrip('/')}/"):
                return folder.absolute() / path[len(prefix) :].lstrip("/")
        if Path(path).exists():
            return None
        parts = Path(path).parts[1:]
        for index in range(len(parts)):
            end = Path(*parts[index:])
            if len(end.parts) == 1 and (index == 0 or not end.suffix):
                break  # a name alone is too little
            for base, source in ((self.root, None), (self.clone, self._source)):
                if (base / end).exists() or (source and (source / end).exists()):
                    return base / end
        return None

    # -- stand-ins

    def _add_missing_steps(self) -> None:
        """Add a stand-in for each model of an ensemble's step that the repository lacks."""
        for model in list(self.models.values()):
            for name in model.steps:
                if name and name not in self.models and "/" not in name:
                    reason = f"the repository has no model '{name}'"
                    added = TriedModel(name, self.root / name, None, ConfigProto())
                    added.stand_in, added.cure = reason, "add the folder of the model"
                    (added.folder / "1").mkdir(parents=True)
                    self.models[name] = added

    def _derive_signature(self, model: TriedModel) -> None:
        """Complete a stand-in's configuration from the ensembles that use it, and write it."""
        if not model.stand_in or model.config is None:
            return
        if not (model.config.input and model.config.output):
            for user in self.models.values():
                if user.config is not None and model.name in user.steps:
                    self._signature_of_step(model, user.config)
                    break
        self.stand_in(model.name, model.stand_in)

    def _signature_of_step(self, model: TriedModel, user: ConfigProto) -> None:
        assert model.config is not None
        steps = user.ensemble_scheduling.step
        known: dict[str, ModelInput | ModelOutput] = {
            entry.name: entry for entry in (*user.input, *user.output)
        }
        for step in steps:
            other = self.models.get(step.model_name)
            if other is None or other.config is None:
                continue
            inputs = {entry.name: entry for entry in other.config.input}
            outputs = {entry.name: entry for entry in other.config.output}
            for key, tensor in step.input_map.items():
                if key in inputs:
                    known.setdefault(tensor, inputs[key])
            for key, tensor in step.output_map.items():
                if key in outputs:
                    known.setdefault(tensor, outputs[key])
        model.config.max_batch_size = user.max_batch_size
        own = next(step for step in steps if step.model_name == model.name)
        for names, field_name in ((own.input_map, "input"), (own.output_map, "output")):
            entries = getattr(model.config, field_name)
            if entries:
                continue
            for key in sorted(names):
                source = known.get(names[key])
                entry = entries.add(name=key, data_type="TYPE_FP32", dims=[-1])
                if source is not None:
                    entry.data_type = source.data_type
                    entry.dims[:] = source.dims

    def stand_in(self, name: str, reason: str) -> bool:
        """Replace a model by a stand-in; return False if its inputs and outputs are not known."""
        model = self.models[name]
        config = model.config
        model.stand_in = ""
        if not self._choices.stand_ins or config is None or config.platform == "ensemble":
            return False
        if not (config.input and config.output):
            model.notes.append("no stand-in: its inputs and outputs are not known")
            return False
        model.stand_in = reason
        for field_name in (
            *("platform", "runtime", "instance_group", "optimization", "model_warmup"),
            *("batch_input", "batch_output", "model_operations", "parameters", "version_policy"),
            *("model_repository_agents", "cc_model_filenames", "response_cache"),
        ):
            config.ClearField(field_name)
        config.name, config.backend, config.default_model_filename = name, "python", "model.py"
        for entry in (*config.input, *config.output):
            entry.is_shape_tensor = False
        config.parameters[schema.STAND_IN].string_value = reason
        shapes = json.dumps(self._consumed(name))
        config.parameters["STAND_IN_SHAPES"].string_value = shapes
        versions = ModelFolder(ModelId(name), model.folder).versions() or (1,)
        code = model.folder / str(max(versions)) / "model.py"
        code.parent.mkdir(exist_ok=True)
        code.unlink(missing_ok=True)
        shutil.copyfile(_STAND_IN_CODE, code)
        self._write(model)
        return True

    def _consumed(self, name: str) -> dict[str, list[int]]:
        """Return the shapes of the inputs into which ensembles write a model's outputs."""
        found: dict[str, list[int]] = {}
        for user in self.models.values():
            steps = user.config.ensemble_scheduling.step if user.config else ()
            written = {
                tensor: key
                for step in steps
                if step.model_name == name
                for key, tensor in step.output_map.items()
            }
            for step in steps:
                reader = self.models.get(step.model_name)
                if reader is None or reader.config is None:
                    continue
                rows = [-1] if reader.config.max_batch_size > 0 else []
                dims = {entry.name: [*rows, *entry.dims] for entry in reader.config.input}
                for key, tensor in step.input_map.items():
                    if tensor in written and key in dims:
                        found.setdefault(written[tensor], dims[key])
        return found

    def mark(self) -> None:
        """Mark the models that use stand-ins: ensembles, and code that names one."""
        for model in self.models.values():
            if model.config is None or model.stand_in:
                continue
            names = self.stand_ins_of(model.name)
            if names:
                text = f"uses stand-ins for {', '.join(names)}"
                if model.config.parameters[schema.STAND_IN].string_value != text:
                    model.config.parameters[schema.STAND_IN].string_value = text
                    self._write(model)

    def stand_ins_of(self, name: str) -> Sequence[str]:
        """Return the stand-ins that take part in a model's answers."""
        found: dict[str, None] = {}
        seen: set[str] = set()
        waiting = [name]
        while waiting:
            each = waiting.pop()
            model = self.models.get(each)
            if model is None or each in seen:
                continue
            seen.add(each)
            if model.stand_in:
                found[each] = None
            else:
                waiting += [*model.steps, *self._called(model)]
        return sorted(found)

    def _called(self, model: TriedModel) -> Iterator[str]:
        """Yield the models whose names the code of a model contains."""
        texts = [
            file.read_text(encoding="utf-8", errors="replace")
            for file in model.folder.rglob("*.py")
        ]
        for name in self.models.keys() - {model.name}:
            if any(f'"{name}"' in text or f"'{name}'" in text for text in texts):
                yield name

    def _write(self, model: TriedModel) -> None:
        assert model.config is not None
        file = model.folder / FILE_NAME
        file.unlink(missing_ok=True)
        text = text_format.MessageToString(model.config)
        if text:
            file.write_text(text, encoding="utf-8")


def _move_to_cpu(model: TriedModel) -> None:
    assert model.config is not None
    for group in model.config.instance_group:
        if group.kind == ModelInstanceGroup.KIND_GPU or group.gpus:
            group.kind = ModelInstanceGroup.KIND_CPU
            del group.gpus[:]
            model.notes.append("its instances are moved from the GPU to the CPU")
        del group.profile[:]


def _missing(model: TriedModel) -> tuple[str, str]:
    """Return why a model cannot run here, or "", and the cure; note its missing packages."""
    config = ConfigProto()
    assert model.config is not None
    config.CopyFrom(model.config)
    complete.complete(config, model.folder)
    if config.platform == "ensemble":
        return "", ""
    versions = ModelFolder(ModelId(model.name), model.folder).versions()
    version = model.folder / str(max(versions, default=1))
    try:
        code = locate_code(config, version, BACKEND_DIRECTORY)
    except ServerError as error:
        if error.path == ("backend",):
            return f"the backend {config.backend or config.platform} is not here", _EXPORT
        return error.message, "remove the field `runtime`"
    if code is None:
        return "", ""
    artifact = version / config.default_model_filename
    if code == SHIPPED:
        if not artifact.exists():
            return f"{version.name}/{artifact.name} is missing", "put the file there"
        if artifact.is_file() and layout.is_pointer(artifact):
            return f"{version.name}/{artifact.name} is a Git LFS pointer", "git lfs pull"
        if fault := here.backend_fault(config):
            model.packages.append(fault[1].removeprefix("pip install "))
            return fault[0], fault[1]
        for found in here.file_faults(version):
            if found.file == artifact:
                return (
                    f"{version.name}/{artifact.name}{found.text.partition(artifact.name)[2][1:]}",
                    found.hint,
                )
        return "", ""
    if not code.exists():
        return f"{version.name}/{code.name} is missing", "put the file there"
    if code.is_relative_to(model.folder):
        needs = here.MachineUse(code)
        model.packages += [here.pip_name(name.split(".")[0]) for name in needs.missing]
        model.packages = sorted(set(model.packages))
        if model.packages:
            model.cure = f"pip install {' '.join(model.packages)}, or --install"
        else:
            model.cure = next((fault.hint for fault in needs.faults if fault.hint), "")
    return "", model.cure
