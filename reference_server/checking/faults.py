"""Finds all errors in the folders of model repositories, without running code of models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from reference_server.checking import layout
from reference_server.checking.config_text import close_name
from reference_server.checking.model_check import Fault, Level, ModelCheck, Place, Rules, file_fault
from reference_server.config import schema
from reference_server.config.schema import ModelConfig
from reference_server.core.errors import ServerError, invalid_arg, not_found
from reference_server.repository.ensembles import DependencyGraph, check_composing_models
from reference_server.repository.model_folders import (
    DUPLICATE,
    ModelFolder,
    ModelId,
    Repositories,
    wanted_versions,
)
from reference_server.repository.polling import ModelSource


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
        ServerError: A repository is not a folder, or has no models.
    """
    for path in paths:
        if path.is_dir() and not layout.is_repository(path):
            raise invalid_arg(_no_models(path))
    found = [
        file_fault(fault.file.name, fault)
        for path in paths
        if path.is_dir()
        for fault in layout.dangling_links(layout.entries(path))
    ]
    models = [
        ModelCheck(ModelFolder(name, folders[0]), rules) for name, folders in _folders(paths, found)
    ]
    for model in models:
        found += model.own_faults()
    found += _faults_between(models)
    if rules.strict:
        found = [replace(fault, level=Level.ERROR) for fault in found]
    ordered = sorted(dict.fromkeys(found), key=lambda fault: fault.model)
    return Result(len(models), tuple(ordered))


def _no_models(path: Path) -> str:
    text = f"{path}: found no models; expected a folder with one folder for each model"
    roots = layout.likely_roots(path)
    quoted = " or ".join(f"'{root}'" for root in roots)
    return f"{text} - did you mean {quoted}?" if roots else text


def _folders(paths: Sequence[Path], found: list[Fault]) -> Iterator[tuple[ModelId, list[Path]]]:
    for name, folders in Repositories(paths).directories().items():
        if name.name.startswith("."):  # the server does not load them by default
            continue
        if len(folders) > 1:
            text = f"{DUPLICATE}: {', '.join(map(str, folders))}"
            found.append(Fault(Level.ERROR, name, Place(folders[0]), text))
        else:
            yield name, folders


def _faults_between(models: Sequence[ModelCheck]) -> Iterator[Fault]:
    """Yield the faults of ensembles whose models are missing or do not match."""
    graph = DependencyGraph()
    by_id = {model.folder.id: model for model in models}
    readable = {name: model for name, model in by_id.items() if model.proto is not None}
    for name, model in readable.items():
        assert model.proto is not None
        source = ModelSource(model.folder, model.proto, None, explicit=True)
        graph.put(name, source.steps, explicit=True)
    # Unreadable models exist, and their faults are already reported.
    for name in by_id.keys() - readable.keys():
        graph.put(name, {}, explicit=True)
    errors = graph.errors(readable)
    for name, error in errors.items():
        yield _step_fault(by_id[name], error, graph, by_id)
    for name, model in readable.items():
        meant = graph.present_steps(name)
        if name in errors or model.config is None or not model.config.is_ensemble:
            continue
        if any(by_id[step].is_open or by_id[step].config is None for step in meant.values()):
            continue  # known only after loading

        def find(step: str, version: int, meant: dict[str, ModelId] = meant) -> ModelConfig:
            used = by_id[meant[step]]
            assert used.config is not None
            _require_version(used, version)
            return used.config

        yield from map(model.fault, check_composing_models.faults(model.config, find))


def _step_fault(
    model: ModelCheck,
    error: ServerError,
    graph: DependencyGraph,
    by_id: Mapping[ModelId, ModelCheck],
) -> Fault:
    """Return the fault of an ensemble with a missing model or a cycle, at the step's line."""
    assert model.proto is not None
    names = [step.model_name for step in model.proto.ensemble_scheduling.step]
    present = graph.present_steps(model.folder.id)
    missing = [name for name in names if name not in present]
    users = graph.users([model.folder.id])
    wrong = missing or [name for name in names if present[name] in {*users, model.folder.id}]
    path = ("ensemble_scheduling", "step", names.index(wrong[0]), "model_name")
    hint = close_name(missing[0], [name.name for name in by_id]) if missing else ""
    return model.fault(ServerError(error.code, error.message, path), hint)


def _require_version(model: ModelCheck, version: int) -> None:
    assert model.proto is not None
    served = wanted_versions(schema.version_policy(model.proto), model.folder.versions())
    if version != -1 and version not in served:
        raise not_found(f"version {version} of '{model.folder.name}' is not served")
