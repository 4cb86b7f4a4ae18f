"""Reports of faults: text lines, JSON, and SARIF for code hosts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from reference_server import __version__
from reference_server.checking.faults import Fault, Result

_SARIF = "https://json.schemastore.org/sarif-2.1.0.json"
_RULE = "model-repository"


def as_text(result: Result) -> str:
    """Return a line for each fault, in the format of compilers, and a summary."""
    lines = [f"{_where(fault)}: {fault.level.value}: {fault.message}\n" for fault in result.faults]
    warnings = len(result.faults) - result.errors
    counted = (_count(result.models, "model"), _count(result.errors, "error"))
    return "".join(lines) + ", ".join((*counted, _count(warnings, "warning"))) + "\n"


def as_json(result: Result) -> str:
    """Return a JSON object with the number of models and the faults (line 0: the whole file)."""
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
    """Return a SARIF 2.1.0 log. Paths are relative to the working directory if possible."""
    tool = {
        "name": "reference-server check",
        "version": __version__,
        "rules": [
            {
                "id": _RULE,
                "shortDescription": {"text": "A fault that keeps a model from loading"},
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
