"""Stand-ins: models that replace models which cannot run on this machine."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig as ConfigProto
from tritonclient.grpc.model_config_pb2 import ModelInput, ModelOutput

from reference_server.config import schema
from reference_server.repository.model_files import SHIPPED
from reference_server.trying.model import TriedModel

_UNKNOWN = "no stand-in, because its inputs and outputs are not known"
_CODE = SHIPPED.with_name("stand_in.py")


class StandIns:
    """Replaces models of a prepared repository, and finds the models that use a stand-in."""

    def __init__(self, models: dict[str, TriedModel], root: Path, *, allowed: bool) -> None:
        self._models = models
        self._root = root
        self._allowed = allowed

    def add_missing_steps(self) -> None:
        """Add a stand-in for each ensemble step whose model is not in the repository."""
        for model in list(self._models.values()):
            for name in model.steps:
                if name and name not in self._models and "/" not in name:
                    reason = f"the repository has no model '{name}'"
                    added = TriedModel(name, self._root / name, None, ConfigProto())
                    added.stand_in, added.cure = reason, "add the folder of the model"
                    (added.folder / "1").mkdir(parents=True)
                    self._models[name] = added

    def derive(self, model: TriedModel) -> None:
        """Complete a stand-in's configuration from the ensembles that use it, and write it."""
        if not model.stand_in or model.config is None:
            return
        if not (model.config.input and model.config.output):
            for user in self._models.values():
                if user.config is not None and model.name in user.steps:
                    self._signature_of_step(model, user.config)
                    break
        self.replace(model.name, model.stand_in)

    def _signature_of_step(self, model: TriedModel, user: ConfigProto) -> None:
        assert model.config is not None
        steps = user.ensemble_scheduling.step
        known: dict[str, ModelInput | ModelOutput] = {
            entry.name: entry for entry in (*user.input, *user.output)
        }
        for step in steps:
            other = self._models.get(step.model_name)
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

    def replace(self, name: str, reason: str) -> bool:
        """Replace a model by a stand-in; return False if its inputs and outputs are not known."""
        model = self._models[name]
        config = model.config
        model.stand_in = ""
        if not self._allowed or config is None or config.platform == "ensemble":
            return False
        if not (config.input and config.output):
            if not any(note.startswith(_UNKNOWN) for note in model.notes):
                model.notes.append(f"{_UNKNOWN}: {reason}")
                model.cure = f"{model.cure}; or declare its inputs and outputs, for a stand-in"
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
        versions = model.versions() or (1,)
        code = model.folder / str(max(versions)) / "model.py"
        code.parent.mkdir(exist_ok=True)
        code.unlink(missing_ok=True)
        shutil.copyfile(_CODE, code)
        model.write()
        return True

    def _consumed(self, name: str) -> dict[str, list[int]]:
        """Return for each output of a model the shape of the step input that reads it."""
        found: dict[str, list[int]] = {}
        for user in self._models.values():
            steps = user.config.ensemble_scheduling.step if user.config else ()
            written = {
                tensor: key
                for step in steps
                if step.model_name == name
                for key, tensor in step.output_map.items()
            }
            for step in steps:
                reader = self._models.get(step.model_name)
                if reader is None or reader.config is None:
                    continue
                rows = [-1] if reader.config.max_batch_size > 0 else []
                dims = {entry.name: [*rows, *entry.dims] for entry in reader.config.input}
                for key, tensor in step.input_map.items():
                    if tensor in written and key in dims:
                        found.setdefault(written[tensor], dims[key])
        return found

    def mark(self) -> None:
        """Mark models that use stand-ins: ensembles, and code that contains a stand-in's name."""
        for model in self._models.values():
            if model.config is None or model.stand_in:
                continue
            names = self.used_by(model.name)
            if names:
                text = f"uses stand-ins for {', '.join(names)}"
                if model.config.parameters[schema.STAND_IN].string_value != text:
                    model.config.parameters[schema.STAND_IN].string_value = text
                    model.write()

    def used_by(self, name: str) -> Sequence[str]:
        """Return the names of the stand-ins that contribute to a model's responses."""
        found: dict[str, None] = {}
        seen: set[str] = set()
        waiting = [name]
        while waiting:
            each = waiting.pop()
            model = self._models.get(each)
            if model is None or each in seen:
                continue
            seen.add(each)
            if model.stand_in:
                found[each] = None
            else:
                waiting += [*model.steps, *self._called(model)]
        return sorted(found)

    def _called(self, model: TriedModel) -> Iterator[str]:
        """Yield the models whose names occur in the code of a model."""
        texts = [
            file.read_text(encoding="utf-8", errors="replace")
            for file in model.folder.rglob("*.py")
        ]
        for name in self._models.keys() - {model.name}:
            if any(f'"{name}"' in text or f"'{name}'" in text for text in texts):
                yield name
