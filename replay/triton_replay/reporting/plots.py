"""SVG plots of latencies: over percentiles with a logarithmic tail, and over loads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, floor, log10
from typing import Final

from triton_replay.comparing.latencies import Percentile

WIDTH, HEIGHT = 640, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 12, 36
_TICKS: Final = (0.0, 50.0, 90.0, 99.0, 99.9, 99.99)
_POINTS: Final = 300
"""Largest number of points of a line; the largest value is always one of them."""
_MOST_TICKS: Final = 8
"""Most ticks on the axis of loads."""


def latency_plot(
    measured: Mapping[str, Sequence[int]],
    intervals: Mapping[str, Sequence[Percentile]] | None = None,
) -> str:
    """Plot latencies over percentiles, with two logarithmic axes.

    Args:
        measured: Latencies in nanoseconds by key of their line.
        intervals: Percentiles by key, whose confidence intervals are drawn unless they are open.

    Returns:
        The SVG element, or "" without latencies.
    """
    lines = {name: sorted(values) for name, values in measured.items() if values}
    if not lines:
        return ""
    scale = _LatencyAxis([end for values in lines.values() for end in (values[0], values[-1])])
    deepest = max(_depth(len(values)) for values in lines.values())

    def x(depth: float) -> float:
        return _LEFT + depth / deepest * (WIDTH - _LEFT - _RIGHT)

    pieces = [_begin("latencies")]
    for percent in _TICKS:
        depth = -log10(1 - percent / 100)
        if depth <= deepest:
            pieces += _tick(x(depth), f"p{percent:g}")
    pieces += scale.grid()
    for number, (name, percentiles) in enumerate((intervals or {}).items()):
        side = 8.0 * number - 4.0
        for one in percentiles:
            if one.low is not None and one.high is not None:
                place = x(-log10(1 - one.percent / 100)) + side
                ends = scale.y(one.low), scale.y(one.high)
                pieces.append(_line(f"interval {name}", place, ends[0], place, ends[1]))
    for name, values in lines.items():
        points = " ".join(
            f"{x(depth):.1f},{scale.y(value):.1f}" for depth, value in _spectrum(values)
        )
        pieces.append(f'<polyline class="{name}" points="{points}"/>')
    return "".join([*pieces, "</svg>"])


def load_plot(loads: Sequence[float], measured: Mapping[str, Sequence[int]], what: str) -> str:
    """Plot latencies over loads.

    Args:
        loads: The loads.
        measured: Latencies in nanoseconds by key, one at each load.
        what: Unit of the loads.
    """
    scale = _LatencyAxis([value for values in measured.values() for value in values])
    most = max(loads) * 1.05

    def x(load: float) -> float:
        return _LEFT + load / most * (WIDTH - _LEFT - _RIGHT)

    pieces = [_begin("latencies over loads"), *scale.grid()]
    step = next(one for one in _round_values(most / 100, most) if most / one <= _MOST_TICKS)
    for number in range(int(most / step) + 1):
        pieces += _tick(x(number * step), f"{number * step:g}")
    pieces.append(_label(WIDTH - _RIGHT, HEIGHT - 4, what, "end"))
    for name, values in measured.items():
        points = [
            (f"{x(load):.1f}", f"{scale.y(value):.1f}")
            for load, value in zip(loads, values, strict=True)
        ]
        places = " ".join(",".join(point) for point in points)
        pieces.append(f'<polyline class="{name}" points="{places}"/>')
        pieces += [
            f'<circle class="key-{name}" fill="currentColor" r="3" cx="{across}" cy="{up}"/>'
            for across, up in points
        ]
    return "".join([*pieces, "</svg>"])


class _LatencyAxis:
    """A logarithmic vertical axis for latencies in nanoseconds."""

    def __init__(self, values: Sequence[int]) -> None:
        low = max(min(values), 1) / 1e6
        high = max(max(values) / 1e6, low)
        self._bottom = floor(log10(low) * 3) / 3
        self._top = ceil(log10(high) * 3 + 0.01) / 3

    def y(self, nanoseconds: float) -> float:
        place = max(log10(max(nanoseconds, 1) / 1e6), self._bottom)
        share = (place - self._bottom) / (self._top - self._bottom)
        return HEIGHT - _BOTTOM - share * (HEIGHT - _TOP - _BOTTOM)

    def grid(self) -> list[str]:
        pieces = []
        for tick in _round_values(10**self._bottom, 10**self._top):
            up = self.y(tick * 1e6)
            pieces.append(_line("grid", _LEFT, up, WIDTH - _RIGHT, up))
            pieces.append(_label(_LEFT - 6, up + 4, f"{tick:g} ms", "end"))
        return pieces


def _depth(count: int) -> float:
    """Return the horizontal position of the largest of `count` values."""
    return log10(2 * max(count, 2))


def _spectrum(ordered: Sequence[int]) -> list[tuple[float, int]]:
    """Return the points of a line, evenly spaced on the axis up to the largest value."""
    n = len(ordered)
    deepest = _depth(n)
    indexes = (int(n * (1 - 10 ** (-step / _POINTS * deepest))) for step in range(_POINTS))
    found = dict.fromkeys([*(min(index, n - 1) for index in indexes), n - 1])
    # Each value is at the middle of its share.
    return [(-log10(1 - (index + 0.5) / n), ordered[index]) for index in found]


def _round_values(low: float, high: float) -> list[float]:
    powers = range(floor(log10(low)), ceil(log10(high)) + 1)
    values = [factor * 10.0**power for power in powers for factor in (1, 2, 5)]
    return [value for value in values if low * 0.999 <= value <= high * 1.001]


def _begin(what: str) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{what}">'


def _tick(at: float, text: str) -> list[str]:
    bottom = HEIGHT - _BOTTOM
    return [_line("grid", at, bottom, at, _TOP), _label(at, bottom + 16, text, "middle")]


def _line(name: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{name}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _label(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>'
