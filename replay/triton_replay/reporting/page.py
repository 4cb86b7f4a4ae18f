"""The result of `compare` as a self-contained HTML page."""

from __future__ import annotations

from html import escape

from triton_replay.capture.reader import Capture
from triton_replay.comparing.comparison import Comparison, ModelTimes
from triton_replay.comparing.grouping import Group
from triton_replay.comparing.latencies import verdict
from triton_replay.reporting.html import html_page
from triton_replay.reporting.plots import latency_plot
from triton_replay.reporting.table import (
    interval,
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
    body = (
        "<h1>Two captures compared</h1>"
        f"<table class=captures>{_capture('A', comparison.a)}{_capture('B', comparison.b)}</table>"
        f"<p class='verdict {kind}'>{comparison.compared} requests compared, the answers to "
        f"<strong>{comparison.differing}</strong> differ.{left}</p>{groups}"
        "<h2>Latency</h2><p>Percentiles with 95 % intervals, in milliseconds. "
        "<span class=key-a>A is the solid line</span>, <span class=key-b>B the dashed one</span>."
        f" The bars are the intervals.{unlike}</p>{''.join(map(_model, shown))}"
    )
    return html_page(f"{comparison.a.name} and {comparison.b.name}", body)


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
    plot = latency_plot({"a": times.a, "b": times.b}, {"a": a.percentiles, "b": b.percentiles})
    return f"<h3>{escape(times.model)}</h3>{plot}<table>{heads}{''.join(rows)}</table>"
