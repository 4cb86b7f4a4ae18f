"""Noise: differences between two responses of the same server to the same request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Final

from triton_replay.comparing.differences import Difference

_VALUES: Final = frozenset(("rounding", "values", "values of some rows", "off by one", "order"))
"""Kinds that vary with the values, and count as one kind."""
_FAILURES: Final = ("status", "error text", "text", "no complete response")
_MARGIN: Final = 2
"""Factor for values, because larger differences than those seen are possible."""

Key = tuple[str, str, str, str]


@dataclass(frozen=True)
class Noise:
    """The differences between a server's own responses.

    Args:
        counts: Number of requests by model, kind, output and path of a difference.
        spread: Largest relative difference of values by model and output.
    """

    counts: Mapping[Key, int]
    spread: Mapping[tuple[str, str], float]

    def lines(self) -> list[str]:
        """Describe each difference with its number of requests."""
        return [
            f"{kind}: {model}, {path or output} in {count} requests"
            for (model, kind, output, path), count in sorted(self.counts.items())
        ]

    def beyond(
        self, found: Sequence[Sequence[Difference]], *, learn: bool
    ) -> list[tuple[Difference, ...]]:
        """Return the differences of another server that are not noise.

        Args:
            found: The differences of each request.
            learn: Whether all differences of a kind that the noise has are omitted: fields
                completely, values up to twice the noise. Otherwise a difference stays if it is
                more frequent than in the noise.
        """
        counts = _counts(found)

        def stays(one: Difference) -> bool:
            usual = self.counts.get(_key(one), 0)
            if not learn or one.kind.startswith(_FAILURES):
                # Three standard deviations of the difference between the two counts.
                return counts[_key(one)] > usual + 3 * sqrt(2 * usual)
            if one.kind in _VALUES and not one.path:
                return one.relative > _MARGIN * self.spread.get((one.model, one.output), -1.0)
            return not usual

        return [tuple(filter(stays, of_request)) for of_request in found]


def measure_noise(found: Iterable[Sequence[Difference]]) -> Noise:
    """Return the noise of a server.

    Args:
        found: The differences of each request between two responses of the server.
    """
    requests = list(found)
    spread: dict[tuple[str, str], float] = {}
    for one in (each for of_request in requests for each in of_request):
        if one.kind in _VALUES and not one.path:
            place = one.model, one.output
            spread[place] = max(spread.get(place, 0.0), one.relative)
    return Noise(_counts(requests), spread)


def _counts(found: Iterable[Sequence[Difference]]) -> Counter[Key]:
    return Counter(key for of_request in found for key in set(map(_key, of_request)))


def _key(one: Difference) -> Key:
    kind = "values" if one.kind in _VALUES else one.kind
    return one.model, kind, one.output, one.path
