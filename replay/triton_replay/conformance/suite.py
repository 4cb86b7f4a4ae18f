"""Execution of all cases, and the verdict on each extension."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from triton_replay.conformance.cases import Case, describe
from triton_replay.conformance.grpc_table import GRPC_CASES, GrpcCase
from triton_replay.conformance.subject import NotApplicable, Subject
from triton_replay.conformance.table import CASES, CORE, IGNORABLE
from triton_replay.errors import ServerUnreachable


@dataclass(frozen=True)
class Finding:
    """The result of one case: "holds", "fails" or "not tried"."""

    extension: str
    name: str
    result: str
    reason: str = ""
    request: str = ""
    """A shell command or a gRPC message that repeats the request."""


@dataclass(frozen=True)
class Chapter:
    """The result of one extension.

    Args:
        extension: Name of the extension, or of a chapter of the protocol.
        announced: Whether the server announces the extension.
        verdict: One of five. "fails": a case fails, and the extension is required or announced.
            "not served": a case fails, and the extension is neither required nor announced.
            "accepts": no case fails, but the extension is not announced, and a server may just
            ignore its parameters.
            "serves": at least one case holds. "not tried": no case was tried.
        findings: Results of the cases.
    """

    extension: str
    announced: bool
    verdict: str
    findings: tuple[Finding, ...]

    @property
    def failing(self) -> list[Finding]:
        """Failed cases."""
        return [one for one in self.findings if one.result == "fails"]

    def as_json(self) -> dict[str, Any]:
        """Return all fields for JSON."""
        return {**vars(self), "findings": [vars(one) for one in self.findings]}


def run_suite(subject: Subject) -> list[Chapter]:
    """Execute all cases; return the chapters in the order of the tables.

    Raises:
        ServerUnreachable: The server stopped listening.
    """
    cases: tuple[Case | GrpcCase, ...] = (*CASES, *GRPC_CASES)
    findings = [_finding(subject, case) for case in cases]
    extensions = dict.fromkeys(one.extension for one in findings)
    return [
        _chapter(subject, extension, [one for one in findings if one.extension == extension])
        for extension in extensions
    ]


def _finding(subject: Subject, case: Case | GrpcCase) -> Finding:
    command = ""
    try:
        command, attempt = case.prepare(subject)
        attempt()
    except NotApplicable as error:
        return Finding(case.extension, case.name, "not tried", str(error))
    except ServerUnreachable as error:
        # The last request may be the cause.
        text = f"{error}, since {case.extension}, {case.name}: {command}"
        raise ServerUnreachable(text) from error
    except Exception as error:  # a server may send anything
        return Finding(case.extension, case.name, "fails", describe(error), command)
    return Finding(case.extension, case.name, "holds", request=command)


def _chapter(subject: Subject, extension: str, findings: list[Finding]) -> Chapter:
    announced = extension in subject.extensions
    results = {one.result for one in findings}
    if "fails" in results:
        required = announced or extension in CORE or extension == "gRPC"
        verdict = "fails" if required else "not served"
    elif extension in IGNORABLE and not announced:
        verdict = "accepts"
    else:
        verdict = "serves" if "holds" in results else "not tried"
    return Chapter(extension, announced, verdict, tuple(findings))
