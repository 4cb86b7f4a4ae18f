"""A modifiable copy of a model repository, with links to large files."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig as ConfigProto

from reference_server.backends.environments import PARAMETER, expanded
from reference_server.checking import here, layout
from reference_server.config import schema
from reference_server.config.pbtxt import FILE_NAME
from reference_server.repository.model_folders import wanted_versions
from reference_server.trying.model import TriedModel, missing
from reference_server.trying.roots import is_model, model_config
from reference_server.trying.stand_ins import StandIns
from reference_server.trying.templates import Values

#: Larger files become links. Smaller files are copied, so that model code cannot modify the clone.
_COPIED = 1 << 20
_MOST_FILES = 50_000
_PATH = re.compile(r"(?P<quote>[\"'])(?P<path>/[\w.+-]+(?:/[\w.+-]+)+/?)(?=[\"'])")
_CUDA = re.compile(r"([\"'])cuda(?::\d+)?\1")
_CUDA_CALL = re.compile(r"\.cuda\(\s*\)")


@dataclass(frozen=True, slots=True)
class Choices:
    """The options of `reference-server try` that change the copy."""

    values: Mapping[str, str] = field(default_factory=dict)
    """Values of placeholders (`--set`)."""
    maps: Mapping[str, Path] = field(default_factory=dict)
    """Replacement folders by absolute path (`--map`)."""
    gpu_to_cpu: bool = True
    stand_ins: bool = True


class Overlay:
    """The copy of a clone in which one model repository is prepared for this machine.

    Attributes:
        root: The folder of the prepared repository.
        clone: The copy of the clone; the working directory of its code.
        models: The prepared models, by name.
        stand_ins: Replaces the models that cannot run.
    """

    def __init__(self, clone: Path, root: Path, into: Path, choices: Choices) -> None:
        """Copy and prepare the repository `root` of `clone`."""
        self.clone = into / "clone"
        self.root = self.clone / root.relative_to(clone)
        self.models: dict[str, TriedModel] = {}
        self._source, self._source_root = clone, root
        self._choices = choices
        self._values = Values(clone, choices.values)
        self._files = 0
        self._link_around(clone, root)
        for folder in layout.entries(root):
            if folder.is_dir() and folder.name[0] != "." and is_model(folder):
                self._add(folder)
        self.stand_ins = StandIns(self.models, self.root, allowed=choices.stand_ins)
        self.stand_ins.add_missing_steps()
        for model in self.models.values():
            self.stand_ins.derive(model)
        self.stand_ins.mark()

    def keep_only(self, name: str) -> None:
        """Remove all models except `name` and the models of its ensemble steps."""
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
        """Create the folders on the path to the root, and link everything beside that path."""
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
            _remove_missing_environment(model)
            if self._choices.gpu_to_cpu:
                model.move_to_cpu()
        self._change_code(model)
        self.models[model.name] = model
        if model.config is not None:
            model.stand_in, model.cure = missing(model)
            model.write()

    def _read(self, model: TriedModel) -> ConfigProto | None:
        """Return the model's configuration with values for its placeholders, or None."""
        file = model_config(model.folder)
        config = ConfigProto()
        if file is None:
            return config
        if file.name != FILE_NAME:
            model.notes.append(f"{file.name} is used as {FILE_NAME}")
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
        """Rename the folder to the configuration's `name`: Triton requires equal names."""
        assert model.config is not None
        name = model.config.name
        if not name or name == model.name or "/" in name:
            return
        target = self.root / name
        if target.exists() or not name.strip("."):
            model.config.name = model.name
            model.notes.append(f"name '{name}' is changed to the name of the folder")
            return
        model.notes.append(f"the folder '{model.name}' is renamed to '{name}', as in {FILE_NAME}")
        model.folder.rename(target)
        model.name, model.folder = name, target

    def _create_version(self, model: TriedModel) -> None:
        assert model.config is not None
        versions = model.versions()
        if versions and not wanted_versions(schema.version_policy(model.config), versions):
            model.config.ClearField("version_policy")
            model.notes.append("version_policy selects no version; it is removed")
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
        """Map absolute paths in the model's code, and replace its CUDA devices with the CPU."""
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
        """Replace absolute paths that do not exist on this machine with matching paths in the copy.

        Returns the new text, and a note for each path.
        """
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
            for copy, source in ((self.root, self._source_root), (self.clone, self._source)):
                found = source / end
                # A single name matches only a model's folder: other matches would be accidental.
                if found.is_dir() if len(end.parts) == 1 else found.exists():
                    return copy / end if copy == self.root or len(end.parts) > 1 else None
        return None


def _remove_missing_environment(model: TriedModel) -> None:
    """Use the server's Python if the model's own environment is missing."""
    assert model.config is not None
    value = schema.parameter(model.config, PARAMETER)
    path = expanded(value, model.folder)
    if path and not Path(path).exists():
        del model.config.parameters[PARAMETER]
        model.notes.append(f"its environment {value} is missing; the server's Python is used")
