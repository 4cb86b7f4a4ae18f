"""The result of `compare` as text and JSON, and the result of `conformance` as text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from triton_replay.capture.files import Capture
from triton_replay.comparing.comparison import Comparison, ModelTimes
from triton_replay.comparing.groups import Group
from triton_replay.comparing.latencies import Percentile
from triton_replay.conformance.subject import Subject
from triton_replay.conformance.suite import Chapter

MODELS_SHOWN: Final = 20
FAILURES_SHOWN: Final = 20
FEW: Final = 10
"""With fewer requests, at least one end of each confidence interval is undetermined."""
_OF_SHADOW: Final = (
    "No verdict, and conditions are incomplete: shadow stored only requests whose responses differ",
)
_NO_VERDICT: Final = (
    "No verdict: A and B ran at different times, and the latency of one server differs between",
    "runs by more than the intervals show, because requests of one run are not independent",
)
"""Lines that replace a verdict on the latencies."""


def comparison_lines(comparison: Comparison) -> list[str]:
    """Return the lines of the report."""
    a, b = comparison.a, comparison.b
    lines = [
        f"A  {a.name}: {origin_of(a)}, {a.opening.started}",
        f"B  {b.name}: {origin_of(b)}, {b.opening.started}",
        "",
        f"{comparison.compared} requests compared, the answers to {comparison.differing} differ",
    ]
    if comparison.only_a:
        lines.append(f"{comparison.only_a} requests are in A only and were not compared")
    if comparison.only_b:
        lines.append(f"{comparison.only_b} requests are in B only and were not compared")
    lines += failure_lines(failures_of(comparison))
    if learned := comparison.noise.lines():
        lines += ["", "ignored, because A differs from its second replay", *learned]
    for number, one in enumerate(comparison.groups, 1):
        lines += ["", *_group_lines(number, one)]
    lines += ["", *_latency_lines(comparison)]
    return lines


def origin_of(capture: Capture) -> str:
    """Describe the server of a capture, and the speed of a replay."""
    speed = speed_of(capture)
    how = f"replayed at speed {speed} to" if speed else "recorded at"
    return f"{how} {capture.opening.server}"


def no_verdict(comparison: Comparison) -> tuple[str, ...]:
    """Return lines that say why the latencies have no verdict."""
    if "shadow_of" in comparison.a.opening.settings:
        return _OF_SHADOW
    return _NO_VERDICT


def unlike_loads(comparison: Comparison) -> str:
    """Return why the latencies are not comparable, or ""."""
    if _load_of(comparison.a) == _load_of(comparison.b):
        return ""
    return "A and B have different loads: to compare latencies, replay twice with equal options"


def _load_of(capture: Capture) -> tuple[str, str]:
    return speed_of(capture), str(capture.opening.settings.get("loop", ""))


def late_sides(comparison: Comparison) -> list[str]:
    """Describe the replays that sent more than 1 % of their requests late."""
    found = []
    for side, capture in (("A", comparison.a), ("B", comparison.b)):
        lateness = capture.closing.lateness if capture.closing else {}
        late, requests = lateness.get("late", 0), lateness.get("requests", 0)
        if late > requests / 100:
            largest = lateness.get("largest", 0) / 1e6
            text = f"{late} of {requests} requests were sent 10 to {largest:.0f} ms late"
            found.append(f"{side}: {text}")
    return found


def speed_of(capture: Capture) -> str:
    """Return the speed of a replay, or "" for a recording."""
    return str(capture.opening.settings.get("speed", ""))


def title_of(kind: str, model: str, output: str) -> str:
    """Return the title of a difference."""
    return f"{kind}: {model}" + (f", {output}" if output else "")


def group_text(one: Group) -> str:
    """Return a line about a group."""
    text = f"{title_of(one.kind, one.model, one.output)}, {len(one.requests)} of {one.of} requests"
    return ", ".join(filter(None, [text, one.condition])) + (
        f"; {one.example}" if one.example else ""
    )


def _group_lines(number: int, one: Group) -> list[str]:
    title = title_of(one.kind, one.model, one.output)
    counts = f"   {len(one.requests)} of {one.of} requests"
    lines = [f"{number}. {title}", ", ".join(filter(None, [counts, one.condition]))]
    if one.largest:
        lines.append(f"   largest difference {one.largest:.3g}")
    body = f"smallest: request {one.smallest.number}, {one.smallest.body_size} bytes"
    lines.append(f"   {body}" + (f"; {one.example}" if one.example else ""))
    return lines


def _latency_lines(comparison: Comparison) -> list[str]:
    late = late_sides(comparison)
    if late:
        return ["no latencies, because the replaying machine sent requests late:", *late]
    lines = [
        "latency in ms, 95 % intervals in brackets; requests per second",
        f"{'':24} {'A':>22} {'B':>22}     B/A",
    ]
    lines[1:1] = [*no_verdict(comparison), *filter(None, [unlike_loads(comparison)])]
    shown = shown_times(comparison)
    for times in shown:
        lines += _model_lines(times)
    if len(comparison.times) > len(shown):
        rest = len(comparison.times) - len(shown)
        lines.append(f"... and {rest} with fewer requests, in JSON (--json)")
    return lines


def shown_times(comparison: Comparison) -> Sequence[ModelTimes]:
    """Return the models with at least FEW requests, or all models if none has."""
    many = [one for one in comparison.times if one.requests >= FEW]
    return (many or comparison.times)[:MODELS_SHOWN]


def _model_lines(times: ModelTimes) -> list[str]:
    a, b = times.summary_a, times.summary_b
    ratio = f"{b.per_second / a.per_second:8.2f}" if a.per_second and b.per_second else ""
    counts = [f"{s.count}, {s.per_second:.1f}/s" for s in (a, b)]
    lines = [f"{times.model[:24]:24} {counts[0]:>22} {counts[1]:>22}{ratio}"]
    if times.excluded:
        lines.append(f"  without {excluded_text(times)}")
    for one, other in zip(a.percentiles, b.percentiles, strict=False):
        ratio = f"{other.value / one.value:8.2f}" if one.value else ""
        lines.append(f"{f'  p{one.percent}':24} {interval(one):>22} {interval(other):>22}{ratio}")
    for name, *both in more_times(times):
        cells = ("-" if found is None else interval(found) for found in both)
        lines.append(" ".join([f"  {name}".ljust(24), *(f"{cell:>22}" for cell in cells)]))
    return lines


def more_times(
    times: ModelTimes,
) -> Iterator[tuple[str, Percentile | None, Percentile | None]]:
    """Yield p50 and p99 of service times, if they differ from response times, and of streams."""
    a, b = times.summary_a, times.summary_b
    waited = any(
        response.value > 1.05 * service.value
        for side in (a, b)
        for response, service in zip(side.percentiles, side.service, strict=False)
    )
    kinds = {"service": (a.service, b.service)} if waited else {}
    kinds |= {"first response": (a.first, b.first), "between responses": (a.between, b.between)}
    for name, sides in kinds.items():
        one, other = ({found.percent: found for found in side} for side in sides)
        for percent in (50, 99) if one or other else ():
            yield f"p{percent} {name}", one.get(percent), other.get(percent)


def excluded_text(times: ModelTimes) -> str:
    """Describe the requests of a model that have no latency."""
    return f"{times.excluded} of {times.requests} requests that failed in A or B"


Failures = tuple[str, Mapping[str, int], Mapping[str, int]]
"""A model, and its failed requests in A and B, by reason."""


def failures_of(comparison: Comparison) -> list[Failures]:
    """Return the failures of each model."""
    return [(one.model, one.failures_a, one.failures_b) for one in comparison.times]


def failure_rows(failures: Iterable[Failures]) -> list[tuple[str, str, int, int]]:
    """Return model, reason, and counts in A and B of the failures whose counts differ most."""
    rows = [
        (model, why, a.get(why, 0), b.get(why, 0))
        for model, a, b in failures
        for why in sorted({*a, *b})
    ]
    return sorted(rows, key=lambda row: -abs(row[2] - row[3]))[:FAILURES_SHOWN]


def failure_lines(failures: Iterable[Failures]) -> list[str]:
    """Return the table of failures, after an empty line; nothing without failures."""
    rows = [
        f"{model[:40]:40} {why:20} {a:>8} {b:>8}" for model, why, a, b in failure_rows(failures)
    ]
    return ["", f"{'requests that failed':61} {'A':>8} {'B':>8}", *rows] if rows else []


def interval(percentile: Percentile) -> str:
    """Format a percentile and its interval in milliseconds. An end without a value is empty."""
    low, high = ("" if x is None else _ms(x) for x in (percentile.low, percentile.high))
    return f"{_ms(percentile.value)} [{low}..{high}]"


def _ms(nanoseconds: int) -> str:
    return f"{nanoseconds / 1e6:.{0 if nanoseconds >= 99_950_000 else 2}f}"


# -- the result of `compare` as JSON


def comparison_document(comparison: Comparison) -> dict[str, Any]:
    """Return the result as JSON. Times are nanoseconds."""
    return {
        "a": _capture(comparison.a),
        "b": _capture(comparison.b),
        "compared": comparison.compared,
        "learned": comparison.noise.lines(),
        "differing": comparison.differing,
        "only_a": comparison.only_a,
        "only_b": comparison.only_b,
        "groups": [group_document(one) for one in comparison.groups],
        "latencies": [
            {
                "model": times.model,
                "requests": times.requests,
                "failures_a": dict(times.failures_a),
                "failures_b": dict(times.failures_b),
                "excluded": times.excluded,
                "a": asdict(times.summary_a),
                "b": asdict(times.summary_b),
            }
            for times in comparison.times
        ],
    }


def _capture(capture: Capture) -> dict[str, Any]:
    opening = capture.opening
    return {
        "capture": capture.name,
        "complaint": capture.complaint,
        "server": opening.server,
        "started": opening.started,
        "replay_of": opening.settings.get("replay_of"),
        "speed": opening.settings.get("speed"),
        "loop": opening.settings.get("loop"),
        "lateness": dict(capture.closing.lateness) if capture.closing else {},
    }


def group_document(one: Group) -> dict[str, Any]:
    """Return a group as JSON."""
    return {
        "kind": one.kind,
        "model": one.model,
        "output": one.output,
        "condition": one.condition,
        "requests": list(one.requests),
        "of": one.of,
        "largest": one.largest,
        "smallest": one.smallest.number,
        "example": one.example,
    }


# -- the result of `conformance` as text


def conformance_lines(subject: Subject, chapters: Sequence[Chapter]) -> Iterator[str]:
    """Yield the lines of the table, then the failed cases with their requests."""
    yield f"{subject.server}, model {subject.model}"
    yield f"{'extension':22} {'announced':9}  {'verdict':10}  cases that hold"
    for one in chapters:
        tried = [finding for finding in one.findings if finding.result != "not tried"]
        held = f"{len(tried) - len(one.failing)} of {len(tried)}" if tried else "-"
        left = len(one.findings) - len(tried)
        more = f", {left} not tried" if tried and left else ""
        announced = "yes" if one.announced else ""
        yield f"{one.extension:22} {announced:9}  {one.verdict:10}  {held}{more}"
    for one in chapters:
        for finding in one.failing if one.verdict == "fails" else ():
            yield ""
            yield f"{one.extension}: {finding.name}"
            yield f"  {finding.reason}"
            yield f"  {finding.request}"
