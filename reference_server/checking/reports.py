"""What was found, as lines for people, as JSON, and as SARIF for code hosts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from reference_server import __version__
from reference_server.checking.faults import Fault, Result

_SARIF = "https://json.schemastore.org/sarif-2.1.0.json"
_RULE = "model-repository"


def as_text(result: Result) -> str:
    """A line for each fault, as compilers write them, and one that counts."""
    lines = [f"{_where(fault)}: {fault.level.value}: {fault.message}\n" for fault in result.faults]
    warnings = len(result.faults) - result.errors
    counted = (_count(result.models, "model"), _count(result.errors, "error"))
    return "".join(lines) + ", ".join((*counted, _count(warnings, "warning"))) + "\n"


def as_json(result: Result) -> str:
    """One object: how many models, and the faults with model, file, line (0: the file), message."""
    found = [
        {
            "level": fault.level.value,
            "model": fault.model,
            "file": _shown(fault.place.file),
            "line": fault.place.line,
            "message": fault.message,
        }
        for fault in result.faults
    ]
    return json.dumps({"models": result.models, "faults": found}, indent=2) + "\n"


def as_sarif(result: Result) -> str:
    """A SARIF 2.1.0 log, whose paths are relative to the working directory where they can be."""
    tool = {
        "name": "reference-server check",
        "version": __version__,
        "rules": [
            {
                "id": _RULE,
                "shortDescription": {"text": "What keeps a model of the repository from loading"},
            }
        ],
    }
    run = {"tool": {"driver": tool}, "results": [_sarif(fault) for fault in result.faults]}
    return json.dumps({"$schema": _SARIF, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


#: By the value of `--format`.
REPORTS: Mapping[str, Callable[[Result], str]] = {
    "text": as_text,
    "json": as_json,
    "sarif": as_sarif,
}


def _sarif(fault: Fault) -> dict[str, object]:
    location: dict[str, object] = {"artifactLocation": {"uri": _shown(fault.place.file)}}
    if fault.place.line:
        location["region"] = {"startLine": fault.place.line}
    return {
        "ruleId": _RULE,
        "level": fault.level.value,
        "message": {"text": fault.message},
        "locations": [{"physicalLocation": location}],
    }


def _where(fault: Fault) -> str:
    file = _shown(fault.place.file)
    return f"{file}:{fault.place.line}" if fault.place.line else file


def _shown(file: Path) -> str:
    whole = file.absolute()
    here = Path.cwd()
    return (whole.relative_to(here) if whole.is_relative_to(here) else whole).as_posix()


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
