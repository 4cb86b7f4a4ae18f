"""Puts all cases to a server, and says of each extension what became of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from triton_replay.conformance.cases import Case, tell
from triton_replay.conformance.grpc_table import GRPC_CASES, GrpcCase
from triton_replay.conformance.subject import NotApplicable, Subject
from triton_replay.conformance.table import CASES, CORE, IGNORABLE
from triton_replay.errors import ServerUnreachable


@dataclass(frozen=True)
class Finding:
    """What became of one case: `holds`, `fails` or `not tried`."""

    extension: str
    name: str
    result: str
    reason: str = ""
    request: str = ""
    """To send it again: a line for a shell, or a gRPC message."""


@dataclass(frozen=True)
class Chapter:
    """What a server does of one extension.

    verdict: `serves`, `fails` (it is the protocol's own or announced, and a case fails), `not
    served` (not announced, and a case fails), `accepts` (not announced, and its parameters do no
    harm, maybe because they are ignored), or `not tried`.
    """

    extension: str
    announced: bool
    verdict: str
    findings: tuple[Finding, ...]

    @property
    def failing(self) -> list[Finding]:
        """The cases that fail."""
        return [one for one in self.findings if one.result == "fails"]

    def as_json(self) -> dict[str, Any]:
        """All of it."""
        return {**vars(self), "findings": [vars(one) for one in self.findings]}


def run_suite(subject: Subject) -> list[Chapter]:
    """All chapters, in the order of the tables. Raises ServerUnreachable if the server is gone."""
    findings = list(_findings(subject))
    extensions = dict.fromkeys(one.extension for one in findings)
    return [
        _chapter(subject, extension, [one for one in findings if one.extension == extension])
        for extension in extensions
    ]


def _findings(subject: Subject) -> Iterator[Finding]:
    for case in CASES:
        yield _over_http(subject, case)
    for call in GRPC_CASES:
        yield _over_grpc(subject, call)


def _over_http(subject: Subject, case: Case) -> Finding:
    try:
        ask = case.ask(subject)
    except NotApplicable as error:
        return Finding(case.extension, case.name, "not tried", str(error))
    command = ask.command(subject.server)
    try:
        case.check(subject, subject.send(ask))
    except NotApplicable as error:
        return Finding(case.extension, case.name, "not tried", str(error))
    except ServerUnreachable as error:
        raise _gone(error, case, command) from error
    except Exception as error:  # a server may answer anything
        return Finding(case.extension, case.name, "fails", tell(error), command)
    return Finding(case.extension, case.name, "holds", request=command)


def _over_grpc(subject: Subject, case: GrpcCase) -> Finding:
    if subject.grpc is None:
        return Finding(case.extension, case.name, "not tried", "no --grpc")
    try:
        command = case.command(subject)
    except NotApplicable as error:
        return Finding(case.extension, case.name, "not tried", str(error))
    try:
        case.attempt(subject)
    except ServerUnreachable as error:
        raise _gone(error, case, command) from error
    except Exception as error:  # a server may answer anything
        return Finding(case.extension, case.name, "fails", tell(error), command)
    return Finding(case.extension, case.name, "holds", request=command)


def _gone(error: ServerUnreachable, case: Case | GrpcCase, command: str) -> ServerUnreachable:
    """Which request was the last is what its owner wants to know first."""
    return ServerUnreachable(f"{error}, since {case.extension}, {case.name}: {command}")


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
