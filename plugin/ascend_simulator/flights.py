"""Which executions still use a thing, as far as the host can know."""

from __future__ import annotations

from ascend_simulator.ordering import Ordering


class Flights:
    """The executions that a model, a dataset or a buffer was submitted with.

    That one happens to be over is no knowledge (see `ordering`): it counts until the host waited.
    Callers hold the machine's lock.
    """

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: dict[int, int] = {}

    def add(self, stream: int, number: int) -> None:
        """Task `number` of the stream uses it."""
        self._last[stream] = number

    def pending(self, ordering: Ordering) -> bool:
        """Whether the host may not count on the end of one of them."""
        return bool(self._left(ordering))

    def unordered(self, ordering: Ordering, stream: int) -> bool:
        """Whether one is on another stream, and what `stream` gets next does not come after it."""
        return any(
            not ordering.comes_after(stream, other, number)
            for other, number in self._left(ordering).items()
        )

    def _left(self, ordering: Ordering) -> dict[int, int]:
        self._last = {
            stream: number
            for stream, number in self._last.items()
            if not ordering.is_over(stream, number)
        }
        return self._last
