"""Results of `compare` and `ab` for a code review: a Markdown comment, and JUnit's XML."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from triton_replay.addresses import Address
from triton_replay.comparing.comparison import Comparison, ModelTimes
from triton_replay.comparing.side_by_side import ModelVerdict, differing
from triton_replay.reporting.table import group_text, late_sides, no_verdict, origin_of

_SHOWN: Final = 20
"""Most models and differences in a comment. GitHub allows 65,536 characters."""
_LONGEST: Final = 400
"""Most characters of a line."""


@dataclass(frozen=True)
class ModelReview:
    """The result for one model."""

    model: str
    requests: int
    failures: tuple[int, int]
    """Failed requests of A and B."""
    differing: int
    """Requests whose responses differ."""
    differences: Sequence[str]
    latencies: Sequence[tuple[str, float, float, str]]
    """Statistic, milliseconds of A and B, and the verdict or ""."""


@dataclass(frozen=True)
class Check:
    """A condition of success."""

    name: str
    failures: Sequence[str]
    """Lines that describe the failure; empty if the check holds."""
    model: str = ""


@dataclass(frozen=True)
class Review:
    """The result of a command."""

    command: str
    title: str
    servers: Sequence[str]
    models: Sequence[ModelReview]
    checks: Sequence[Check]
    notes: Sequence[str] = ()


def review_of_comparison(comparison: Comparison) -> Review:
    """Return the result of `compare`, with a check for each model."""
    late = late_sides(comparison)
    models = [_of_times(comparison, times, timed=not late) for times in comparison.times]
    checks = [Check("answers", one.differences, one.model) for one in models]
    missing = [
        f"{count} requests are in {side} only and were not compared"
        for side, count in (("A", comparison.only_a), ("B", comparison.only_b))
        if count
    ]
    if missing:
        checks.append(Check("all requests are compared", missing))
    return Review(
        "compare",
        f"{comparison.differing} of {comparison.compared} answers differ",
        [f"{one.name}: {origin_of(one)}" for one in (comparison.a, comparison.b)],
        models,
        checks,
        [*missing, *(late or [" ".join(no_verdict(comparison))])],
    )


def _of_times(comparison: Comparison, times: ModelTimes, *, timed: bool) -> ModelReview:
    groups = [group for group in comparison.groups if group.model == times.model]
    pairs = zip(times.summary_a.percentiles, times.summary_b.percentiles, strict=False)
    return ModelReview(
        times.model,
        times.requests,
        (sum(times.failures_a.values()), sum(times.failures_b.values())),
        len({number for group in groups for number in group.requests}),
        [group_text(group) for group in groups],
        [(f"p{a.percent}", a.value / 1e6, b.value / 1e6, "") for a, b in pairs if timed],
    )


def review_of_ab(
    servers: Mapping[str, Address], verdict: Sequence[ModelVerdict], conditions: Mapping[str, bool]
) -> Review:
    """Return the result of `ab`, with a check for each condition of `--fail-if`.

    Args:
        servers: Addresses by name.
        verdict: The verdicts on all models.
        conditions: Whether each condition holds, which is a failure.
    """
    models = [
        ModelReview(
            one.model,
            one.requests,
            (sum(one.failures["A"].values()), sum(one.failures["B"].values())),
            len({number for group in one.groups for number in group.requests}),
            [group_text(group) for group in one.groups],
            [(each.statistic, each.a / 1e6, each.b / 1e6, each.verdict) for each in one.effects],
        )
        for one in verdict
    ]
    lines = [line for one in models for line in _failure_lines(one)]
    requests = sum(one.requests for one in verdict)
    return Review(
        "ab",
        f"{differing(verdict)} of {requests} answers differ",
        [f"{name}: {address}" for name, address in servers.items()],
        models,
        [
            Check(f"not {text}", [f"{text} holds", *lines] if holds else [])
            for text, holds in conditions.items()
        ],
    )


def _failure_lines(one: ModelReview) -> Iterator[str]:
    a, b = one.failures
    if a or b:
        yield f"{one.model}: A failed {a} times, B {b} times"
    yield from one.differences
    for statistic, first, second, verdict in one.latencies:
        if verdict:
            yield f"{one.model}: {statistic} {first:.2f} and {second:.2f} ms, {verdict}"


# -- Markdown


def markdown(review: Review) -> str:
    """Return a comment for a pull request. Names are marked as code, so that they stay literal."""
    failed = any(check.failures for check in review.checks)
    lines = [f"### {':x:' if failed else ':white_check_mark:'} {review.title}", ""]
    lines += [f"* {_code(server)}" for server in review.servers]
    lines += [
        f"* failed: {_code(': '.join(filter(None, (one.model, one.name))))}"
        for one in review.checks
        if one.failures
    ]
    columns = [statistic for statistic, *_ in next(_timed(review.models), ())]
    heads = ["model", "requests", "failed, A and B", "differ", *(f"{one}, ms" for one in columns)]
    lines += ["", *_row(heads), *_row(["---", *["---:"] * (len(heads) - 1)])]
    for one in review.models[:_SHOWN]:
        found = {name: f"{a:.2f}, {b:.2f} {verdict}" for name, a, b, verdict in one.latencies}
        counts = [str(one.requests), "{}, {}".format(*one.failures), str(one.differing)]
        lines += _row([_code(one.model), *counts, *(found.get(name, "") for name in columns)])
    if len(review.models) > _SHOWN:
        lines += ["", f"... and {len(review.models) - _SHOWN} models with fewer requests"]
    differences = [text for one in review.models for text in one.differences]
    if differences:
        lines += ["", f"<details><summary>groups of differences: {len(differences)}</summary>", ""]
        lines += [f"* {_code(text)}" for text in differences[:_SHOWN]]
        lines += ["", "</details>"]
    lines += [line for note in review.notes for line in ("", f"{note}.")]
    return "\n".join([*lines, ""])


def _timed(models: Sequence[ModelReview]) -> Iterator[Sequence[tuple[str, float, float, str]]]:
    return (one.latencies for one in models if one.latencies)


def _row(cells: Sequence[str]) -> list[str]:
    return [f"| {' | '.join(cell.strip() for cell in cells)} |"]


def _code(text: str) -> str:
    plain = " ".join(text[:_LONGEST].split()).replace("`", "'").replace("|", "\\|")
    return f"`{plain}`"


# -- JUnit


def junit(review: Review) -> str:
    """Return the checks as test cases in JUnit's XML."""
    failed = sum(bool(check.failures) for check in review.checks)
    counts = {"tests": str(len(review.checks)), "failures": str(failed)}
    suites = Element("testsuites", counts)
    suite = SubElement(suites, "testsuite", {"name": f"triton-replay {review.command}", **counts})
    for check in review.checks:
        where = f"triton-replay.{check.model or review.command}"
        case = SubElement(suite, "testcase", {"classname": where, "name": check.name, "time": "0"})
        if check.failures:
            failure = SubElement(case, "failure", {"message": check.failures[0][:_LONGEST]})
            failure.text = "\n".join(check.failures)
    indent(suites)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + tostring(suites, "unicode") + "\n"
