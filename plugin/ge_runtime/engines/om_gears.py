"""The gears of a chain: one of each stage, such that what one gives is what the next one takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ge_runtime.ascend.om_model import Dims, LoadedModel, OmGear
from ge_runtime.engines.base import Shapes
from ge_runtime.errors import ArtifactFault


@dataclass(frozen=True, slots=True)
class ChainGear:
    """One set of shapes that the chain can execute."""

    stages: tuple[OmGear, ...]
    """Each stage's own."""
    dims: Mapping[str, Dims]
    """Of all tensors of all stages, by name."""


def join_gears(models: Mapping[str, LoadedModel]) -> list[ChainGear]:
    """Every combination of the stages' gears that agrees on the tensors they have in common.

    models: by stage, in order of execution. The first stage's gears are in their order.
    Raises ArtifactFault, with both lists, at the first stage that agrees with no combination of
    those before it.
    """
    joined = [ChainGear((), {})]
    for stage, model in models.items():
        own = [(gear, _dims(model, gear)) for gear in model.gears.values()]
        common = joined[0].dims.keys() & own[0][1].keys()
        names = [name for name in own[0][1] if name in common]
        agreeing: dict[tuple[Dims, ...], list[tuple[OmGear, Mapping[str, Dims]]]] = {}
        for gear, dims in own:
            agreeing.setdefault(_of(dims, names), []).append((gear, dims))
        more = [
            ChainGear((*before.stages, gear), {**before.dims, **dims})
            for before in joined
            for gear, dims in agreeing.get(_of(before.dims, names), ())
        ]
        if not more:
            given = dict.fromkeys(_of(before.dims, names) for before in joined)
            raise ArtifactFault(
                f"the stages {', '.join(models)} do not fit together: stage '{stage}': found gears "
                f"for {_shown(names, agreeing)}, expected one for what there is before it: "
                f"{_shown(names, given)}; `ge-runtime build` compiles all stages for the same gears"
            )
        joined = more
    return joined


def listed(shapes: Shapes) -> str:
    """Shapes for people."""
    return ", ".join(f"{name} {list(dims)}" for name, dims in shapes.items())


def _dims(model: LoadedModel, gear: OmGear) -> dict[str, Dims]:
    description = model.description
    names = [tensor.name for tensor in description.data_inputs]
    return {
        **dict(zip(names, gear.inputs, strict=True)),
        **dict(zip(description.output_names, gear.outputs, strict=True)),
    }


def _of(dims: Mapping[str, Dims], names: Sequence[str]) -> tuple[Dims, ...]:
    return tuple(dims[name] for name in names)


def _shown(names: Sequence[str], shapes: Iterable[tuple[Dims, ...]]) -> str:
    return "; ".join(listed(dict(zip(names, dims, strict=True))) for dims in shapes)
