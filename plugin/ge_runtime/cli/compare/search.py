"""The search for the tensor at which a graph begins to differ: pure, by bisection."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol


class Order(Protocol):
    """The tensors of a graph."""

    def before(self, name: str) -> Sequence[str]:
        """All that a tensor is computed of, in the order in which they are."""

    def taken(self, name: str) -> Sequence[str]:
        """Those that its node takes."""


def first_beyond(
    order: Order,
    last: str,
    measure: Callable[[Sequence[str]], Mapping[str, bool]],
    cuts: int,
) -> str:
    """A tensor that is beyond while all that its node takes are not.

    last: one that is beyond. measure: whether each of some tensors is; asked for at most `cuts` of
    the search's own, or for all that one node takes. It need not be monotone: errors may vanish,
    as by a maximum, and come again.
    """
    beyond = last
    while True:
        found = _border(order.before(beyond), beyond, measure, cuts)
        taken = order.taken(found)
        verdicts = measure(taken) if taken else {}
        wrong = [name for name in taken if verdicts[name]]
        if not wrong:
            return found
        beyond = wrong[0]  # earlier than `found`, so this ends


def _border(
    among: Sequence[str],
    last: str,
    measure: Callable[[Sequence[str]], Mapping[str, bool]],
    cuts: int,
) -> str:
    """One that is beyond, directly behind one that is not, or the first."""
    fine, beyond = -1, len(among)
    while beyond - fine > 1:
        points = spread(fine, beyond, cuts)
        verdicts = measure([among[point] for point in points])
        beyond = next((point for point in points if verdicts[among[point]]), beyond)
        fine = max((point for point in points if point < beyond), default=fine)
    return among[beyond] if beyond < len(among) else last


def spread(low: int, high: int, most: int) -> list[int]:
    """At most so many whole numbers between the two, evenly, both left out."""
    between = high - low - 1
    count = min(most, between)
    return [low + (place * (between + 1)) // (count + 1) for place in range(1, count + 1)]
