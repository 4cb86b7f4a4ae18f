"""The dependencies between models, and the check of an ensemble against its composing models.

Pure: no I/O and no threads. Only ensembles use other models.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from reference_server.config.rule import Faults, rule, under
from reference_server.config.schema import EnsembleStep, ModelConfig
from reference_server.core.errors import ServerError, invalid_arg
from reference_server.core.metadata import Dims, Signature, TensorConfig
from reference_server.repository.model_folders import ModelId, ModelIds
from reference_server.scheduling.ensemble_plan import EnsembleGraph

#: The names of the models that an ensemble uses, each with the versions that it requires.
Steps = Mapping[str, frozenset[int]]
_FindConfig = Callable[[str, int], ModelConfig]


@dataclass(frozen=True, slots=True)
class _Node:
    steps: Steps
    explicit: bool


class DependencyGraph:
    """The requested models and the models that each of them uses. Not thread-safe.

    A model may use a missing model; `errors` reports this.
    """

    def __init__(self) -> None:
        self._nodes: dict[ModelId, _Node] = {}
        self._ids = ModelIds()

    def __contains__(self, name: ModelId) -> bool:
        return name in self._nodes

    def named(self, name: str) -> list[ModelId]:
        """Return the models of this name."""
        return self._ids.named(name) or []

    def present_steps(self, name: ModelId) -> dict[str, ModelId]:
        """Return the models of an ensemble's steps, by name, without missing models."""
        node = self._nodes.get(name)
        found = {} if node is None else {step: self._resolve(name, step) for step in node.steps}
        return {step: model for step, model in found.items() if model is not None}

    def _resolve(self, user: ModelId, step: str) -> ModelId | None:
        return self._ids.resolve(step, user.namespace)

    def put(self, name: ModelId, steps: Steps, *, explicit: bool) -> None:
        """Add a model or replace its entry.

        `explicit` is true if the model was requested by name, and not because an ensemble uses it.
        """
        self._nodes[name] = _Node(steps, explicit)
        self._ids.add(name)

    def remove(self, names: Iterable[ModelId], *, with_unused: bool = False) -> set[ModelId]:
        """Remove models, and return the models that were present.

        With `with_unused`, also remove models that no other model uses now, unless they were
        requested by name.
        """
        removed: set[ModelId] = set()
        waiting = list(names)
        for name in waiting:  # grows during the loop
            steps = self.present_steps(name)
            if self._nodes.pop(name, None) is None:
                continue
            self._ids.discard(name)
            removed.add(name)
            if with_unused:
                waiting += [
                    used
                    for used in steps.values()
                    if used in self._nodes
                    and not self._nodes[used].explicit
                    and not self._direct_users(used)
                ]
        return removed

    def users(self, names: Iterable[ModelId]) -> set[ModelId]:
        """Return all direct and indirect users of `names`, without `names` themselves."""
        start = set(names)
        found = set(start)
        waiting = list(start)
        for name in waiting:
            fresh = [user for user in self._direct_users(name) if user not in found]
            found.update(fresh)
            waiting += fresh
        return found - start

    def used(self, names: Iterable[ModelId]) -> set[ModelId]:
        """Return `names` and all models that they use directly or indirectly."""
        found = set(names)
        waiting = list(found)
        for name in waiting:
            fresh = [step for step in self._all_steps(name) if step not in found]
            found.update(fresh)
            waiting += fresh
        return found

    def _all_steps(self, name: ModelId) -> set[ModelId]:
        """Return the models of an ensemble's steps; missing models get the ensemble's namespace."""
        node = self._nodes.get(name)
        steps = () if node is None else node.steps
        return {self._resolve(name, step) or ModelId(step, name.namespace) for step in steps}

    def errors(self, names: Iterable[ModelId]) -> dict[ModelId, ServerError]:
        """Return the errors of the models in `names` that miss a model or use themselves."""
        errors: dict[ModelId, ServerError] = {}
        for name in sorted(names):
            node = self._nodes.get(name)
            steps = () if node is None else node.steps
            missing = sorted(step for step in steps if self._resolve(name, step) is None)
            if missing:
                errors[name] = invalid_arg(
                    f"ensemble {name} contains models that are not available or ambiguous: "
                    f"{', '.join(missing)}"
                )
            elif name not in errors and (cycle := self._cycle(name)):
                error = invalid_arg(
                    f"circular dependency between ensembles: {name} -> ... -> {cycle[-1]} -> {name}"
                )
                errors.update((member, error) for member in cycle if member not in errors)
        return errors

    def waves(self, names: Iterable[ModelId]) -> Iterator[list[ModelId]]:
        """Yield `names` in waves: a model is in a later wave than the models that it uses.

        Models that use themselves form the last wave.
        """
        waiting = set(names)
        while waiting:
            wave = [
                name for name in waiting if waiting.isdisjoint(self.present_steps(name).values())
            ]
            wave = sorted(wave or waiting)
            yield wave
            waiting.difference_update(wave)

    def _direct_users(self, name: ModelId) -> list[ModelId]:
        return [
            user
            for user, node in self._nodes.items()
            if name.name in node.steps and self._ids.is_affected(name.name, user.namespace, name)
        ]

    def _cycle(self, start: ModelId) -> list[ModelId]:
        """Return a cycle of users that begins with `start`; empty if `start` is in no cycle."""
        # Breadth first, so the error names a shortest cycle.
        paths = [[start]]
        seen = {start}
        for path in paths:
            for user in self._direct_users(path[-1]):
                if user == start:
                    return path
                if user not in seen:
                    seen.add(user)
                    paths.append([*path, user])
        return []


@dataclass(frozen=True, slots=True)
class _InferredTensor:
    """The inferred type and dims of an ensemble tensor, and the model they are inferred from.

    `full_dims` are `dims` with the model's batch dimension, if it has one.
    """

    datatype: str
    dims: Dims
    full_dims: Dims
    model: str


@rule
def check_composing_models(config: ModelConfig, find: _FindConfig) -> Faults:
    """Check an ensemble against its loaded composing models, with Triton's texts.

    Args:
        config: The ensemble's configuration.
        find: Returns the configuration of a loaded model, or raises ServerError.
    """
    name = config.name
    signature = config.signature
    known = {
        entry.name: _of_ensemble(entry, signature)
        for entry in (*signature.inputs, *signature.outputs)
    }
    decoupled: list[int] = []
    for index, step in enumerate(config.ensemble):
        place = ("ensemble_scheduling", "step", index)
        try:
            model = _step_model(name, step, find)
        except ServerError as error:
            error.path = (*place, *error.path)
            yield error
            continue
        if model.decoupled:
            decoupled.append(index)
        if signature.max_batch_size > model.signature.max_batch_size and model.signature.batches:
            yield invalid_arg(
                f"ensemble {name} allows maximum batch size {signature.max_batch_size}, but it "
                f"contains model {step.model_name} which only allows maximum batch size to be "
                f"{model.signature.max_batch_size}",
                "max_batch_size",
            )
        inputs = {tensor.name: tensor for tensor in model.signature.inputs}
        outputs = {tensor.name: tensor for tensor in model.signature.outputs}
        for kind, maps, entries, relation in (
            ("input", step.inputs, inputs, "mapping to"),
            ("output", step.outputs, outputs, "mapped from"),
        ):
            for mapped, tensor in maps.items():
                path = (*place, f"{kind}_map", mapped)
                if mapped in entries:
                    agreement = _check_consistent(name, tensor, entries[mapped], model, known)
                    yield from under(path, agreement)
                else:
                    yield invalid_arg(
                        f"in ensemble {name}, ensemble tensor {tensor} is {relation} non-existing "
                        f"{kind} {mapped} in model {step.model_name}",
                        *path,
                    )
        if not step.inputs.keys() <= inputs.keys():  # an unknown name may be a misspelled input
            continue
        for mapped, entry in inputs.items():
            if mapped not in step.inputs and not entry.optional:
                yield invalid_arg(
                    f"in ensemble {name}, input {mapped} in model {step.model_name} is not mapped "
                    "to any ensemble tensors",
                    *(*place, "input_map"),
                )
    given = [tensor.name for tensor in signature.outputs]
    if EnsembleGraph(config.ensemble, given, decoupled).mixes_answers:
        yield invalid_arg(
            f"in ensemble {name}, step of model '{_mixing_model(config, decoupled, known)}' "
            "receives inputs originated from different decoupled models",
            "ensemble_scheduling",
        )


def _mixing_model(
    config: ModelConfig, decoupled: Collection[int], known: Mapping[str, _InferredTensor]
) -> str:
    """Return the model that Triton's error names if responses of different models are mixed.

    Triton follows the tensors, and names the model from which the first mixed tensor was inferred.
    Triton names the ensemble if that tensor is an output, or if no tensor is mixed but the outputs
    come from different responses.
    """
    origins = {tensor.name: -1 for tensor in config.signature.inputs}
    outputs = {tensor.name for tensor in config.signature.outputs}
    waiting = deque(origins)
    while waiting:
        current = waiting.popleft()
        if outputs <= origins.keys() and len({origins[output] for output in outputs}) > 1:
            break
        for index, step in enumerate(config.ensemble):
            read = set(step.inputs.values())
            if current not in read or not read <= origins.keys():
                continue
            mixed = {origins[tensor] for tensor in read}
            for tensor in step.outputs.values():
                if tensor not in origins:
                    if len(mixed) > 1:
                        return known[tensor].model
                    origins[tensor] = index if index in decoupled else min(mixed)
                    waiting.append(tensor)
    return config.name


def _of_ensemble(entry: TensorConfig, signature: Signature) -> _InferredTensor:
    """Return an input or output as the steps see it: after the ensemble's `reshape`."""
    inner = entry.inner
    return _InferredTensor(
        entry.datatype.config_name, inner.dims, signature.full_dims(inner), signature.name
    )


def _step_model(ensemble: str, step: EnsembleStep, find: _FindConfig) -> ModelConfig:
    try:
        find(step.model_name, -1)
    except ServerError as error:
        raise invalid_arg(
            f"ensemble {ensemble} contains models that are not available or ambiguous: "
            f"{step.model_name}",
            "model_name",
        ) from error
    try:
        return find(step.model_name, step.model_version)
    except ServerError as error:
        raise invalid_arg(
            f"ensemble '{ensemble}' depends on '{step.model_name}' whose required version "
            f"{step.model_version} is not loaded.",
            "model_version",
        ) from error


def _check_consistent(
    ensemble: str,
    tensor: str,
    entry: TensorConfig,
    model: ModelConfig,
    known: dict[str, _InferredTensor],
) -> Faults:
    found = _InferredTensor(
        entry.datatype.config_name,
        entry.dims,
        model.signature.full_dims(entry),
        model.signature.name,
    )
    before = known.setdefault(tensor, found)
    if before.datatype != found.datatype:
        yield invalid_arg(
            f"in ensemble {ensemble}, ensemble tensor {tensor}: inconsistent data type: "
            f"{before.datatype} is inferred from model {before.model} while {found.datatype} "
            f"is inferred from model {found.model}"
        )
    # If only one of two models batches, the batch dimension is added or removed between them.
    if not _dims_agree(before.dims, found.dims) and not _dims_agree(
        before.full_dims, found.full_dims
    ):
        yield invalid_arg(
            f"in ensemble {ensemble}, ensemble tensor {tensor}: inconsistent shape: "
            f"{_dims_text(before.full_dims)} is inferred from model {before.model} while "
            f"{_dims_text(found.full_dims)} is inferred from model {found.model}"
        )


def _dims_agree(one: Dims, other: Dims) -> bool:
    return len(one) == len(other) and all(
        a == b or -1 in (a, b) for a, b in zip(one, other, strict=True)
    )


def _dims_text(dims: Dims) -> str:
    return "[" + ",".join(map(str, dims)) + "]"
