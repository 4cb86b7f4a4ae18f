"""What an ensemble needs of its composing models: that they are there, and that tensors fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from reference_server.config.schema import EnsembleStep, ModelConfig
from reference_server.core.errors import ServerError, invalid_arg
from reference_server.core.metadata import Dims, Signature, TensorConfig
from reference_server.scheduling.ensemble_plan import EnsembleGraph

FindConfig = Callable[[str, int], ModelConfig]


@dataclass(frozen=True, slots=True)
class _Known:
    """What has been inferred of an ensemble tensor so far, and from which model.

    `full_dims` are `dims` with the model's batch dimension, if it has one.
    """

    datatype: str
    dims: Dims
    full_dims: Dims
    model: str


def check_ensemble(config: ModelConfig, find: FindConfig) -> None:
    """Raise ServerError if the ensemble cannot work with its composing models as loaded.

    `find` gives a loaded model's configuration, or raises ServerError.
    """
    name = config.name
    signature = config.signature
    known = {
        entry.name: _of_ensemble(entry, signature)
        for entry in (*signature.inputs, *signature.outputs)
    }
    decoupled: list[int] = []
    for index, step in enumerate(config.ensemble):
        model = _step_model(name, step, find)
        if model.decoupled:
            decoupled.append(index)
        if signature.max_batch_size > model.signature.max_batch_size and model.signature.batches:
            raise invalid_arg(
                f"ensemble {name} allows maximum batch size {signature.max_batch_size}, but it "
                f"contains model {step.model_name} which only allows maximum batch size to be "
                f"{model.signature.max_batch_size}"
            )
        inputs = {tensor.name: tensor for tensor in model.signature.inputs}
        outputs = {tensor.name: tensor for tensor in model.signature.outputs}
        for mapped, tensor in step.inputs.items():
            if mapped not in inputs:
                raise invalid_arg(
                    f"in ensemble {name}, ensemble tensor {tensor} is mapping to non-existing "
                    f"input {mapped} in model {step.model_name}"
                )
            _check_consistent(name, tensor, inputs[mapped], model, known)
        for mapped, tensor in step.outputs.items():
            if mapped not in outputs:
                raise invalid_arg(
                    f"in ensemble {name}, ensemble tensor {tensor} is mapped from non-existing "
                    f"output {mapped} in model {step.model_name}"
                )
            _check_consistent(name, tensor, outputs[mapped], model, known)
        for mapped, entry in inputs.items():
            if mapped not in step.inputs and not entry.optional:
                raise invalid_arg(
                    f"in ensemble {name}, input {mapped} in model {step.model_name} is not mapped "
                    "to any ensemble tensors"
                )
    given = [tensor.name for tensor in signature.outputs]
    if EnsembleGraph(config.ensemble, given, decoupled).mixes_answers:
        raise invalid_arg(
            f"in ensemble {name}, step of model '{name}' receives inputs originated from "
            "different decoupled models"
        )


def _of_ensemble(entry: TensorConfig, signature: Signature) -> _Known:
    """An input or output as the steps see it: after the ensemble's own `reshape`."""
    inner = entry.inner
    return _Known(
        entry.datatype.config_name, inner.dims, signature.full_dims(inner), signature.name
    )


def _step_model(ensemble: str, step: EnsembleStep, find: FindConfig) -> ModelConfig:
    try:
        find(step.model_name, -1)
    except ServerError as error:
        raise invalid_arg(
            f"ensemble {ensemble} contains models that are not available or ambiguous: "
            f"{step.model_name}"
        ) from error
    try:
        return find(step.model_name, step.model_version)
    except ServerError as error:
        raise invalid_arg(
            f"ensemble '{ensemble}' depends on '{step.model_name}' whose required version "
            f"{step.model_version} is not loaded."
        ) from error


def _check_consistent(
    ensemble: str,
    tensor: str,
    entry: TensorConfig,
    model: ModelConfig,
    known: dict[str, _Known],
) -> None:
    found = _Known(
        entry.datatype.config_name,
        entry.dims,
        model.signature.full_dims(entry),
        model.signature.name,
    )
    before = known.setdefault(tensor, found)
    if before.datatype != found.datatype:
        raise invalid_arg(
            f"in ensemble {ensemble}, ensemble tensor {tensor}: inconsistent data type: "
            f"{before.datatype} is inferred from model {before.model} while {found.datatype} "
            f"is inferred from model {found.model}"
        )
    # Where only one of two models batches, the dimension is put on or taken off on the way.
    if not _dims_agree(before.dims, found.dims) and not _dims_agree(
        before.full_dims, found.full_dims
    ):
        raise invalid_arg(
            f"in ensemble {ensemble}, ensemble tensor {tensor}: inconsistent shape: "
            f"{_shown(before.full_dims)} is inferred from model {before.model} while "
            f"{_shown(found.full_dims)} is inferred from model {found.model}"
        )


def _dims_agree(one: Dims, other: Dims) -> bool:
    return len(one) == len(other) and all(
        a == b or -1 in (a, b) for a, b in zip(one, other, strict=True)
    )


def _shown(dims: Dims) -> str:
    return "[" + ",".join(map(str, dims)) + "]"
