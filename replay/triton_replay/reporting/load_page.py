"""The result of `load` as a self-contained HTML page."""

from __future__ import annotations

from html import escape

from triton_replay.comparing.latencies import Percentile
from triton_replay.loading.levels import CONCURRENCY
from triton_replay.loading.load import LoadReport
from triton_replay.loading.windows import Measurement
from triton_replay.reporting.html import KEYS, html_page
from triton_replay.reporting.plots import latency_plot, load_plot

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
        key: [_value(one, percent) for one in measured]
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
    """Plot the latencies of evenly chosen loads, as many as there are colors."""
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


def _value(one: Measurement, percent: int) -> int:
    return next(found.value for found in one.percentiles if found.percent == percent)
