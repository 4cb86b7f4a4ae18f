"""Plots as SVG: latencies over percentiles, the tail stretched, for two captures."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor, log10
from typing import Final

from triton_replay.comparing.latencies import Percentile

WIDTH, HEIGHT = 640, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 12, 36
_TICKS: Final = (0.0, 50.0, 90.0, 99.0, 99.9, 99.99)
_POINTS: Final = 300
"""Of a line at most; the largest value is always one."""


def latency_plot(
    a: Sequence[int],
    b: Sequence[int],
    intervals_a: Sequence[Percentile] = (),
    intervals_b: Sequence[Percentile] = (),
) -> str:
    """The latencies of A and B, nanoseconds, both axes logarithmic; empty without any.

    intervals_a, intervals_b: percentiles whose intervals are drawn, those that are open are not.
    """
    lines = [(name, sorted(values)) for name, values in (("a", a), ("b", b)) if values]
    if not lines:
        return ""
    low = min(max(values[0], 1) for _, values in lines) / 1e6
    high = max(values[-1] for _, values in lines) / 1e6
    bottom, top = floor(log10(low) * 3) / 3, ceil(log10(max(high, low)) * 3 + 0.01) / 3
    deepest = max(_depth(len(values)) for _, values in lines)

    def x(depth: float) -> float:
        return _LEFT + depth / deepest * (WIDTH - _LEFT - _RIGHT)

    def y(milliseconds: float) -> float:
        share = (log10(max(milliseconds, low)) - bottom) / (top - bottom)
        return HEIGHT - _BOTTOM - share * (HEIGHT - _TOP - _BOTTOM)

    pieces = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="latencies">']
    for percent in _TICKS:
        depth = -log10(1 - percent / 100)
        if depth <= deepest:
            pieces.append(_line("grid", x(depth), HEIGHT - _BOTTOM, x(depth), _TOP))
            pieces.append(_label(x(depth), HEIGHT - _BOTTOM + 16, f"p{percent:g}", "middle"))
    for tick in _round_values(10**bottom, 10**top):
        pieces.append(_line("grid", _LEFT, y(tick), WIDTH - _RIGHT, y(tick)))
        pieces.append(_label(_LEFT - 6, y(tick) + 4, f"{tick:g} ms", "end"))
    for name, side, intervals in (("a", -4.0, intervals_a), ("b", 4.0, intervals_b)):
        for one in intervals:
            if one.low is not None and one.high is not None:
                place = x(-log10(1 - one.percent / 100)) + side
                ends = y(one.low / 1e6), y(one.high / 1e6)
                pieces.append(_line(f"interval {name}", place, ends[0], place, ends[1]))
    for name, values in lines:
        points = " ".join(
            f"{x(depth):.1f},{y(value / 1e6):.1f}" for depth, value in _spectrum(values)
        )
        pieces.append(f'<polyline class="{name}" points="{points}"/>')
    return "".join([*pieces, "</svg>"])


def _depth(count: int) -> float:
    """How far to the right the largest of so many values lies."""
    return log10(2 * max(count, 2))


def _spectrum(ordered: Sequence[int]) -> list[tuple[float, int]]:
    """Points of a line: even steps along the axis, the last one at the largest value."""
    n = len(ordered)
    deepest = _depth(n)
    indexes = (int(n * (1 - 10 ** (-step / _POINTS * deepest))) for step in range(_POINTS))
    found = dict.fromkeys([*(min(index, n - 1) for index in indexes), n - 1])
    # Each value stands for the middle of its share.
    return [(-log10(1 - (index + 0.5) / n), ordered[index]) for index in found]


def _round_values(low: float, high: float) -> list[float]:
    powers = range(floor(log10(low)), ceil(log10(high)) + 1)
    values = [factor * 10.0**power for power in powers for factor in (1, 2, 5)]
    return [value for value in values if low * 0.999 <= value <= high * 1.001]


def _line(name: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{name}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _label(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>'
