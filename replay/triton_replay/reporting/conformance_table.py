"""The result of `conformance` as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from triton_replay.conformance.subject import Subject
from triton_replay.conformance.suite import Chapter


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
