"""Counts the padding that batches of recorded requests cause, for `ge-runtime inspect`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from ge_runtime.batching.cost import CostModel
from ge_runtime.batching.gears import Gears
from ge_runtime.batching.partition import BatchPartitioner, RequestSizes
from ge_runtime.config import RuntimeConfig
from ge_runtime.memory.plan import aligned_columns
from ge_runtime.planning.histogram import Histogram
from ge_runtime.specs import ROWS

_BATCHES: Final = 16
_REQUESTS: Final = 32
"""Requests of a batch."""
LAUNCH_ELEMENTS: Final = 32
"""Elements that take as long as the launch of an execution, if the cost was not measured yet."""


class Padding(NamedTuple):
    """Elements (tokens) computed for each element of the requests."""

    longest: float
    """Elements if each batch is one execution, padded to the batch's largest size."""
    planned: float
    """Elements in the planned executions."""
    unpadded: float
    """Pairs of elements, as in attention, in executions of a graph with `unpad: auto`."""

    def lines(self) -> list[str]:
        """Return the counts as text."""
        heading = ("computed for each element of the recorded requests", "elements", "pairs")
        rows = [
            ("one execution for a batch of 32, padded to the largest", f"{self.longest:.2f}", ""),
            ("planned executions", f"{self.planned:.2f}", ""),
            ("planned executions without padding (unpad: auto)", "1.00", f"{self.unpadded:.2f}"),
        ]
        return aligned_columns([heading, *rows], "<>>")


def padding_of(
    config: RuntimeConfig,
    gears: Gears,
    histogram: Histogram,
    cost: CostModel | None,
    terms: tuple[tuple[str, ...], ...],
) -> Padding:
    """Count the padding of random batches of recorded sizes, along rows and all axes.

    `cost` is None if it was not measured yet. For `terms` see CostModel.
    """
    cost = cost or CostModel(LAUNCH_ELEMENTS * 1e-6, 1e-6, 0.0, terms)
    sizes, counts = zip(*histogram.counts().items(), strict=True)
    share = np.array(counts) / sum(counts)
    rng = np.random.default_rng(0)
    asked = longest = planned = pairs = computed_pairs = 0
    plain, unpadded = (
        BatchPartitioner(gears, cost, config.rows, config.equal_axes, unpadded=own)
        for own in (False, True)
    )
    for _ in range(_BATCHES):
        drawn = np.array(sizes)[rng.choice(len(sizes), _REQUESTS, p=share)]
        columns = dict(zip(histogram.axes, drawn.T.tolist(), strict=True))
        rows: Sequence[int] = columns.pop(ROWS)
        for place, own in enumerate(rows):
            elements = cost.elements({axis: column[place] for axis, column in columns.items()})
            asked += own * elements
            pairs += own * elements**2
        largest = {axis: max(column) for axis, column in columns.items()}
        longest += sum(rows) * cost.elements(largest)
        requests = RequestSizes(rows, columns)
        for execution in plain.plan(requests):
            planned += execution.gear.rows * cost.elements(execution.gear.extents)
        for execution in unpadded.plan(requests):
            computed_pairs += execution.gear.rows * cost.elements(execution.gear.extents) ** 2
    return Padding(longest / asked, planned / asked, computed_pairs / pairs)
