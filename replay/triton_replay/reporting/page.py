"""A comparison as one HTML page that needs no other file."""

from __future__ import annotations

from html import escape
from typing import Final

from triton_replay.capture.reader import Capture
from triton_replay.comparing.comparison import Comparison, ModelTimes
from triton_replay.comparing.grouping import Group
from triton_replay.comparing.latencies import verdict
from triton_replay.reporting.plots import latency_plot
from triton_replay.reporting.table import MODELS_SHOWN, interval, origin_of, title_of, unlike_loads

_STYLE: Final = """
:root { color-scheme: light dark; --a: #2563eb; --b: #d97706; --line: #8884; --soft: #8881; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.5rem; }
h3 { font-size: 1rem; margin-bottom: .3rem; }
.verdict { padding: .6rem 1rem; border-left: 4px solid; background: var(--soft); }
.same { border-color: #16a34a; } .differs { border-color: #dc2626; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; vertical-align: top; padding: .3rem .6rem .3rem 0; }
tr + tr td { border-top: 1px solid var(--line); } td.number, th.number { text-align: right; }
code { overflow-wrap: anywhere; } .key-a { color: var(--a); } .key-b { color: var(--b); }
svg { width: 100%; height: auto; } svg text { font-size: 11px; fill: currentColor; }
svg .grid { stroke: var(--line); } polyline { fill: none; stroke-width: 2; }
polyline.a { stroke: var(--a); } polyline.b { stroke: var(--b); stroke-dasharray: 6 3; }
.interval { stroke-width: 6; opacity: .35; }
.interval.a { stroke: var(--a); } .interval.b { stroke: var(--b); }
@media (max-width: 40rem) {
  body { margin: 1rem auto; } svg text { font-size: 15px; }
  .groups tr:first-child { display: none; } .groups td { display: inline; border: 0; }
  .groups tr { display: block; padding: .6rem 0; border-top: 1px solid var(--line); }
  .groups td + td + td { display: block; text-align: left; padding: 0; }
  .groups .number::after { content: " requests"; }
  .captures td { display: block; border: 0; padding: 0; }
}
"""


def comparison_page(comparison: Comparison) -> str:
    """The page."""
    groups = "".join(_group(number, one) for number, one in enumerate(comparison.groups, 1))
    if groups:
        heads = "<th>Difference<th class=number>Requests<th>When<th>Smallest request, A and B"
        groups = f"<h2>What differs</h2><table class=groups><tr><th>{heads}{groups}</table>"
    shown = comparison.times[:MODELS_SHOWN]
    kind = "differs" if comparison.differing else "same"
    unlike = unlike_loads(comparison)
    unlike = f" <strong>{unlike}.</strong>" if unlike else ""
    left = "".join(
        f" {count} requests are in {name} only and were not compared."
        for name, count in (("A", comparison.only_a), ("B", comparison.only_b))
        if count
    )
    return (
        "<!doctype html><html lang=en><meta charset=utf-8>"
        "<meta name=viewport content='width=device-width'>"
        f"<title>{escape(comparison.a.name)} and {escape(comparison.b.name)}</title>"
        f"<style>{_STYLE}</style><h1>Two captures compared</h1>"
        f"<table class=captures>{_capture('A', comparison.a)}{_capture('B', comparison.b)}</table>"
        f"<p class='verdict {kind}'>{comparison.compared} requests compared, the answers to "
        f"<strong>{comparison.differing}</strong> differ.{left}</p>{groups}"
        "<h2>Latency</h2><p>Percentiles with 95 % intervals, in milliseconds. "
        "<span class=key-a>A is the solid line</span>, <span class=key-b>B the dashed one</span>."
        f" The bars are the intervals.{unlike}</p>{''.join(map(_model, shown))}</html>"
    )


def _capture(name: str, capture: Capture) -> str:
    key, opening = name.lower(), capture.opening
    complaint = f"<br>{escape(capture.complaint)}" if capture.complaint else ""
    return (
        f"<tr><th class=key-{key}>{name}<td>{escape(capture.name)}{complaint}"
        f"<td>{escape(origin_of(capture))}<td>{escape(opening.started)}"
    )


def _group(number: int, one: Group) -> str:
    largest = f"<br>largest {one.largest:.3g}" if one.largest else ""
    return (
        f"<tr><td>{number}<td>{escape(title_of(one))}{largest}"
        f"<td class=number>{len(one.requests)} of {one.of}<td>{escape(one.condition)}"
        f"<td>request {one.smallest.number}, {one.smallest.body_size} bytes"
        f"<br><code>{escape(one.example)}</code>"
    )


def _model(times: ModelTimes) -> str:
    a, b = times.summary_a, times.summary_b
    rows = [
        f"<tr><td>requests<td class=number>{a.count}, {a.per_second:.1f}/s"
        f"<td class=number>{b.count}, {b.per_second:.1f}/s<td><td>"
    ]
    for one, other in zip(a.percentiles, b.percentiles, strict=False):
        ratio = f"{other.value / one.value:.2f}" if one.value else ""
        rows.append(
            f"<tr><td>p{one.percent}<td class=number>{interval(one)}"
            f"<td class=number>{interval(other)}<td class=number>{ratio}<td>{verdict(one, other)}"
        )
    heads = "<tr><th><th class='number key-a'>A<th class='number key-b'>B<th class=number>B/A<th>"
    plot = latency_plot(times.a, times.b, a.percentiles, b.percentiles)
    return f"<h3>{escape(times.model)}</h3>{plot}<table>{heads}{''.join(rows)}</table>"
