"""Tensors between models of which only one knows a batch dimension: it is put on or taken off.

Where both know it, or neither does, a tensor goes on as it is; a shape that then does not fit is
refused by the model that it is given to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from reference_server.config.schema import EnsembleStep
from reference_server.core.metadata import Dims, Signature, TensorConfig
from reference_server.core.tensor import Shape


class Fitting:
    """The shapes of an ensemble's tensors, as its models and its client take them. Immutable.

    `signature` is the ensemble's, `models` are those of its `steps`, in their order.
    """

    def __init__(
        self, signature: Signature, steps: Sequence[EnsembleStep], models: Sequence[Signature]
    ) -> None:
        batched = {tensor.name: signature.batches for tensor in signature.inputs}
        for step, model in zip(steps, models, strict=True):
            batched.update(dict.fromkeys(step.outputs.values(), model.batches))
        self._inputs = tuple(
            _odd(model, model.inputs, step.inputs, batched)
            for step, model in zip(steps, models, strict=True)
        )
        made = [tensor.inner for tensor in signature.outputs]  # clients see them reshaped
        names = {tensor.name: tensor.name for tensor in signature.outputs}
        self._outputs = _odd(signature, made, names, batched)
        self._model_batches = tuple(model.batches for model in models)
        self._batches = signature.batches

    def for_step(self, step: int, name: str, shape: Shape) -> Shape:
        """The shape of the input `name` of a step's model."""
        dims = self._inputs[step].get(name)
        return shape if dims is None else _fitted(shape, dims, batches=self._model_batches[step])

    def for_client(self, name: str, shape: Shape) -> Shape:
        """The shape of the ensemble's output `name`, before any `reshape`."""
        dims = self._outputs.get(name)
        return shape if dims is None else _fitted(shape, dims, batches=self._batches)


def _odd(
    taker: Signature,
    tensors: Sequence[TensorConfig],
    names: Mapping[str, str],
    batched: Mapping[str, bool],
) -> dict[str, Dims]:
    """The dims of those `tensors` that come from a model that batches otherwise than `taker`."""
    return {
        tensor.name: tensor.dims
        for tensor in tensors
        if tensor.name in names
        and batched.get(names[tensor.name], taker.batches) is not taker.batches
    }


def _fitted(shape: Shape, dims: Dims, *, batches: bool) -> Shape:
    fits = len(shape) == len(dims) and all(
        size == dim or dim == -1 for size, dim in zip(shape, dims, strict=True)
    )
    if batches:
        return (1, *shape) if fits else shape
    return shape[1:] if not fits and shape[:1] == (1,) else shape
