"""The results of `compare` and `load` as self-contained HTML pages."""

from __future__ import annotations

from html import escape
from typing import Final

from triton_replay.capture.files import Capture
from triton_replay.comparing.comparison import Comparison, ModelTimes
from triton_replay.comparing.groups import Group
from triton_replay.comparing.latencies import Percentile
from triton_replay.loading.levels import CONCURRENCY
from triton_replay.loading.load import LoadReport
from triton_replay.loading.windows import Measurement
from triton_replay.reporting.plots import latency_plot, load_plot
from triton_replay.reporting.table import (
    excluded_text,
    failure_rows,
    failures_of,
    interval,
    late_sides,
    more_times,
    no_verdict,
    origin_of,
    shown_times,
    title_of,
    unlike_loads,
)


def comparison_page(comparison: Comparison) -> str:
    """Return the page."""
    groups = "".join(_group(number, one) for number, one in enumerate(comparison.groups, 1))
    if groups:
        heads = "<th>Difference<th class=number>Requests<th>When<th>Smallest request, A and B"
        groups = f"<h2>What differs</h2><table class=groups><tr><th>{heads}{groups}</table>"
    shown = shown_times(comparison)
    kind = "differs" if comparison.differing else "same"
    unlike = unlike_loads(comparison)
    unlike = f" <strong>{unlike}.</strong>" if unlike else ""
    left = "".join(
        f" {count} requests are in {name} only and were not compared."
        for name, count in (("A", comparison.only_a), ("B", comparison.only_b))
        if count
    )
    late = late_sides(comparison)
    models = f"<p>Not shown: {'; '.join(late)}.</p>" if late else "".join(map(_model, shown))
    body = (
        "<h1>Two captures compared</h1>"
        f"<table class=captures>{_capture('A', comparison.a)}{_capture('B', comparison.b)}</table>"
        f"<p class='verdict {kind}'>{comparison.compared} requests compared, the answers to "
        f"<strong>{comparison.differing}</strong> differ.{left}</p>{_failures(comparison)}{groups}"
        "<h2>Latency</h2><p>Percentiles with 95 % intervals, in milliseconds. "
        "<span class=key-a>A is the solid line</span>, <span class=key-b>B the dashed one</span>."
        f" The bars are the intervals.{unlike}</p><p>{' '.join(no_verdict(comparison))}.</p>"
        f"{models}"
    )
    return html_page(f"{comparison.a.name} and {comparison.b.name}", body)


def _capture(name: str, capture: Capture) -> str:
    key, opening = name.lower(), capture.opening
    complaint = f"<br>{escape(capture.complaint)}" if capture.complaint else ""
    return (
        f"<tr><th class=key-{key}>{name}<td>{escape(capture.name)}{complaint}"
        f"<td>{escape(origin_of(capture))}<td>{escape(opening.started)}"
    )


def _failures(comparison: Comparison) -> str:
    rows = "".join(
        f"<tr><td>{escape(model)}<td>{escape(why)}<td class=number>{a}<td class=number>{b}"
        for model, why, a, b in failure_rows(failures_of(comparison))
    )
    heads = "<th>Model<th>Reason<th class=number>A<th class=number>B"
    return f"<h2>Requests that failed</h2><table><tr>{heads}{rows}</table>" if rows else ""


def _group(number: int, one: Group) -> str:
    largest = f"<br>largest {one.largest:.3g}" if one.largest else ""
    return (
        f"<tr><td>{number}<td>{escape(title_of(one.kind, one.model, one.output))}{largest}"
        f"<td class=number>{len(one.requests)} of {one.of}<td>{escape(one.condition)}"
        f"<td>request {one.smallest.number}, {one.smallest.body_size} bytes"
        f"<br><code>{escape(one.example)}</code>"
    )


def _model(times: ModelTimes) -> str:
    a, b = times.summary_a, times.summary_b
    rows = [
        f"<tr><td>requests<td class=number>{a.count}, {a.per_second:.1f}/s"
        f"<td class=number>{b.count}, {b.per_second:.1f}/s<td>"
    ]
    for one, other in zip(a.percentiles, b.percentiles, strict=False):
        ratio = f"{other.value / one.value:.2f}" if one.value else ""
        rows.append(
            f"<tr><td>p{one.percent}<td class=number>{interval(one)}"
            f"<td class=number>{interval(other)}<td class=number>{ratio}"
        )
    for name, found, against in more_times(times):
        cells = ("" if one is None else interval(one) for one in (found, against))
        rows.append(f"<tr><td>{name}" + "".join(f"<td class=number>{cell}" for cell in cells))
    heads = "<tr><th><th class='number key-a'>A<th class='number key-b'>B<th class=number>B/A"
    note = f"<p>Without {excluded_text(times)}.</p>" if times.excluded else ""
    plot = latency_plot({"a": times.a, "b": times.b}, {"a": a.percentiles, "b": b.percentiles})
    return f"<h3>{escape(times.model)}</h3>{note}{plot}<table>{heads}{''.join(rows)}</table>"


# -- the page of `load`

_SHOWN = (50, 90, 99)


def load_page(report: LoadReport) -> str:
    """Return the page."""
    measured = report.measurements
    name = report.model.name if report.model is not None else ""
    is_open = any(one.level.mode != CONCURRENCY for one in measured)
    good = all(one.is_stable and not one.failures for one in measured)
    verdict = (
        "All loads were stable, and all requests succeeded."
        if good
        else "Some loads were not stable, or requests failed: see the table."
    )
    loop = (
        "Open loop: the latency of a request counts from its due time, even if earlier requests "
        "have no response yet."
        if is_open
        else "Closed loop: the number of requests in flight is constant, so a slow server receives "
        "fewer requests per second."
    )
    body = (
        f"<h1>Load on {escape(name)}</h1><p>{escape(report.server)}, {escape(report.began)}</p>"
        f"<p class='verdict {'same' if good else 'differs'}'>{verdict}</p><p>{loop}</p>"
        f"{_curve(measured)}{_spectra(measured)}{_table(report)}"
    )
    return html_page(f"Load on {name}", body)


def _curve(measured: list[Measurement]) -> str:
    if len(measured) < 2:
        return ""
    lines = {
        key: [one.percentile(percent) for one in measured]
        for key, percent in zip(KEYS, _SHOWN, strict=False)
    }
    legend = ", ".join(
        f"<span class=key-{key}>p{percent}</span>"
        for key, percent in zip(KEYS, _SHOWN, strict=False)
    )
    rates = [one.inferences_per_second for one in measured]
    plot = load_plot(rates, lines, "inferences per second")
    return f"<h2>Latency and throughput</h2><p>{legend}</p>{plot}"


def _spectra(measured: list[Measurement]) -> str:
    """Plot the latencies of evenly spaced loads, at most one for each color."""
    count = min(len(KEYS), len(measured))
    chosen = [measured[round(n * (len(measured) - 1) / max(count - 1, 1))] for n in range(count)]
    keys = dict(zip(KEYS, chosen, strict=False))
    legend = ", ".join(
        f"<span class=key-{key}>{escape(_name(one))}</span>" for key, one in keys.items()
    )
    plot = latency_plot({key: one.latencies.tolist() for key, one in keys.items()})
    return f"<h2>Latencies of each load</h2><p>{legend}</p>{plot}"


def _table(report: LoadReport) -> str:
    percents = [found.percent for found in report.measurements[0].percentiles]
    heads = "".join(f"<th class=number>p{percent}" for percent in percents)
    rows = "".join(_row(report, one) for one in report.measurements)
    return (
        "<h2>Results</h2><p>Latencies in milliseconds, percentiles with 95 % intervals; "
        "times at the server in microseconds per request.</p><div class=wide><table>"
        "<tr><th>Load<th class=number>Requests<th class=number>Inferences/s<th class=number>Mean"
        f"{heads}<th class=number>Queue<th class=number>Input<th class=number>Infer"
        f"<th class=number>Output<th>{rows}</table></div>"
    )


def _row(report: LoadReport, one: Measurement) -> str:
    parts = report.parts_of(one)
    times = ("queue", "compute_input", "compute_infer", "compute_output")
    cells = [
        f"{one.count}",
        f"{one.inferences_per_second:.6g}",
        f"{one.mean / 1e6:.3g}",
        *map(_percentile, one.percentiles),
        *("-" if parts is None else f"{parts[part]:.0f}" for part in times),
    ]
    notes = [] if one.is_stable else ["not stable"]
    notes += [f"{count} times {reason}" for reason, count in one.failures.items()]
    notes += [f"{one.unsent} due but not sent"] if one.unsent else []
    notes += [f"{one.late} sent late by this machine"] if one.late else []
    numbers = "".join(f"<td class=number>{cell}" for cell in cells)
    return f"<tr><td>{escape(_name(one))}{numbers}<td>{escape('; '.join(notes))}"


def _name(one: Measurement) -> str:
    if one.level.mode == CONCURRENCY:
        return f"{one.level.value:g} in flight"
    return f"{one.level.value:g}/s"


def _percentile(found: Percentile) -> str:
    low, high = ("" if x is None else f"{x / 1e6:.3g}" for x in (found.low, found.high))
    return f"{found.value / 1e6:.3g}<br><small>{low}..{high}</small>"


# -- the frame of all pages: self-contained files for light and dark mode

_STYLE: Final = """
:root { color-scheme: light dark; --a: #2563eb; --b: #d97706; --c: #16a34a; --d: #9333ea;
--e: #dc2626; --f: #0891b2; --line: #8884; --soft: #8881; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.5rem; }
h3 { font-size: 1rem; margin-bottom: .3rem; }
.verdict { padding: .6rem 1rem; border-left: 4px solid; background: var(--soft); }
.same { border-color: #16a34a; } .differs { border-color: #dc2626; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; vertical-align: top; padding: .3rem .6rem .3rem 0; }
tr + tr td { border-top: 1px solid var(--line); } td.number, th.number { text-align: right; }
code { overflow-wrap: anywhere; } .wide { overflow-x: auto; }
.key-a { color: var(--a); } .key-b { color: var(--b); } .key-c { color: var(--c); }
.key-d { color: var(--d); } .key-e { color: var(--e); } .key-f { color: var(--f); }
svg { width: 100%; height: auto; } svg text { font-size: 11px; fill: currentColor; }
svg .grid { stroke: var(--line); } polyline { fill: none; stroke-width: 2; }
polyline.a { stroke: var(--a); } polyline.b { stroke: var(--b); stroke-dasharray: 6 3; }
polyline.c { stroke: var(--c); } polyline.d { stroke: var(--d); stroke-dasharray: 2 3; }
polyline.e { stroke: var(--e); } polyline.f { stroke: var(--f); stroke-dasharray: 8 3 2 3; }
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
KEYS: Final = "abcdef"
"""Keys of plotted lines; each has a color."""


def html_page(title: str, body: str) -> str:
    """Return an HTML page with this body."""
    return (
        "<!doctype html><html lang=en><meta charset=utf-8>"
        "<meta name=viewport content='width=device-width'>"
        f"<title>{escape(title)}</title><style>{_STYLE}</style>{body}</html>"
    )
