"""Find the tensor at which a graph starts to differ, by bisection. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

Measure: TypeAlias = Callable[[Sequence[str]], Mapping[str, bool]]
"""Names of tensors -> whether each exceeds the limit."""


class Order(Protocol):
    """The tensors of a graph in computation order."""

    def before(self, name: str) -> Sequence[str]:
        """Return all tensors that a tensor depends on, in computation order."""

    def inputs_of(self, name: str) -> Sequence[str]:
        """Return the input tensors of the node that computes a tensor."""


def first_exceeding(order: Order, last: str, measure: Measure, cuts: int) -> str:
    """Return a tensor that exceeds the limit while all inputs of its node are within it.

    Args:
        order: the graph.
        last: a tensor that exceeds the limit.
        measure: called with at most `cuts` tensors, or with all inputs of one node. Errors may
            disappear and reappear along the graph, for example at a maximum.
        cuts: the most tensors for one bisection step.
    """
    exceeding = last
    while True:
        found = _border(order.before(exceeding), exceeding, measure, cuts)
        inputs = order.inputs_of(found)
        verdicts = measure(inputs) if inputs else {}
        wrong = [name for name in inputs if verdicts[name]]
        if not wrong:
            return found
        exceeding = wrong[0]  # computed before `found`, so the loop ends


def _border(names: Sequence[str], last: str, measure: Measure, cuts: int) -> str:
    """Return a tensor that exceeds the limit, directly after one that does not, or the first."""
    within, exceeding = -1, len(names)
    while exceeding - within > 1:
        points = spread(within, exceeding, cuts)
        verdicts = measure([names[point] for point in points])
        exceeding = next((point for point in points if verdicts[names[point]]), exceeding)
        within = max((point for point in points if point < exceeding), default=within)
    return names[exceeding] if exceeding < len(names) else last


def spread(low: int, high: int, most: int) -> list[int]:
    """Return at most `most` evenly spaced integers between `low` and `high`, both excluded."""
    between = high - low - 1
    count = min(most, between)
    return [low + (place * (between + 1)) // (count + 1) for place in range(1, count + 1)]
