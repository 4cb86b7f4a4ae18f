"""Padding that an answer must not show: where a model can be given it, and of which value."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Final, Literal, TypeAlias, get_args

from ge_runtime.assembly import Assembly
from ge_runtime.config import RuntimeConfig
from ge_runtime.specs import DType, TensorSpec

Padding: TypeAlias = Literal["poison", "nan", "keep"]
"""The highest value of an input's range; NaN for floats; what the configuration says."""

PADDINGS: Final[tuple[Padding, ...]] = get_args(Padding)


def poisonous_pads(
    parts: Assembly, ranges: Mapping[str, tuple[float, float]], padding: Padding
) -> dict[str, str]:
    """Input: the value, as config.pbtxt writes it, that its padding is to have instead.

    Of inputs along whose axes the graph is told what is padding; others it takes for data.
    ranges: of the values of every input, high excluded for integers.
    """
    config = parts.config
    if padding == "keep":
        return {}
    told = _told(parts)
    taken = {feed.spec.name for feed in parts.contract.feeds} - {*config.axis_lengths.values()}
    return {
        spec.name: _value(spec, config, ranges[spec.name], padding)
        for spec in config.sources
        if spec.name in taken
        and spec.axes
        and told.issuperset(spec.axes)
        and spec.dtype is not DType.BOOL
    }


def _told(parts: Assembly) -> set[str]:
    """The axes along which the graph is told how far rows reach."""
    config = parts.config
    fed = {feed.spec.name for feed in parts.contract.feeds}
    described = {batch_input.source for batch_input in config.batch_inputs}
    return {
        *chain.from_iterable(config.masks.values()),
        *config.lengths.values(),
        *config.offsets.values(),
        *(axis for axis, name in config.axis_lengths.items() if name in fed),
        *(axis for spec in config.sources if spec.name in described for axis in spec.axes),
    }


def _value(
    spec: TensorSpec, config: RuntimeConfig, within: tuple[float, float], padding: Padding
) -> str:
    low, high = within
    if not spec.dtype.is_integer:
        return "nan" if padding == "nan" else repr(high)
    highest = int(high) - 1
    return str(int(low) if config.pads.get(spec.name, 0) == highest else highest)
