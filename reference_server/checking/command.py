"""The command `reference-server check DIR`: options, exit codes, and reports of faults."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from reference_server import __version__
from reference_server.checking.faults import Result, check_repositories
from reference_server.checking.model_check import Fault, Rules
from reference_server.command.values import stub_model
from reference_server.core.errors import ServerError
from reference_server.core.profiles import NEWEST, PROFILES
from reference_server.options import BACKEND_DIRECTORY


def main(arguments: Sequence[str], program: str = "reference-server check") -> int:
    """Check repositories. Return 1 if a model certainly cannot be loaded, else 0.

    Exits with code 2 if an option is invalid, or if a folder has no models.
    """
    parser = _parser(program)
    given = parser.parse_args(arguments)
    # Drop the loader's log lines, which are about this machine; its errors are reported as faults.
    logging.getLogger("reference_server").addHandler(logging.NullHandler())
    rules = Rules(
        PROFILES[given.triton_version],
        given.backend_directory,
        given.model_config_name,
        given.strict_portable,
        given.strict,
        given.here,
        tuple(given.stub_model),
    )
    try:
        result = check_repositories(given.repositories, rules)
    except (ServerError, OSError) as error:
        parser.error(str(error))
    sys.stdout.write(REPORTS[given.format](result))
    return 1 if result.errors else 0


def _parser(program: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=program, description="Find errors in model repositories without loading a model."
    )
    add = parser.add_argument
    # fmt: off
    add("--version", action="version", version=f"{program} {__version__}")
    add("repositories", nargs="+", type=Path, metavar="DIR")
    add("--format", choices=list(REPORTS), default="text", help="format of the report (text)")
    add("--triton-version", choices=list(PROFILES), default=NEWEST.name,
        help=f"the tritonserver release whose rules apply ({NEWEST.name})")
    add("--backend-directory", type=Path, default=BACKEND_DIRECTORY, metavar="DIR",
        help="directory of Python-based backends, as for the server")
    add("--model-config-name", default="", metavar="NAME",
        help="prefer configs/NAME.pbtxt, as the server does")
    add("--strict", action="store_true", help="report warnings as errors, with exit code 1")
    add("--strict-portable", action="store_true",
        help="report what works here but not on tritonserver 2.51 as an error")
    add("--here", action="store_true",
        help="report what the models need and this machine lacks, as errors")
    add("--stub-model", action="append", default=[], type=stub_model,
        metavar="NAME=MODULE:FUNCTION",
        help="replace the model NAME by a function, as the server does")
    # fmt: on
    return parser


# -- reports: text lines, JSON, and two formats of code hosts

_SARIF = "https://json.schemastore.org/sarif-2.1.0.json"
_RULE = "model-repository"


def as_text(result: Result) -> str:
    """Return a line for each fault, in the format of compilers, and a summary."""
    lines = [f"{_location(fault)}: {fault.level.value}: {fault.text}\n" for fault in result.faults]
    warnings = len(result.faults) - result.errors
    counted = (_count(result.models, "model"), _count(result.errors, "error"))
    return "".join(lines) + ", ".join((*counted, _count(warnings, "warning"))) + "\n"


def as_json(result: Result) -> str:
    """Return a JSON object with the number of models and the faults.

    Line 0 is the whole file, and column 0 the whole line.
    """
    found = [
        {
            "level": fault.level.value,
            "model": fault.model,
            "file": _relative_path(fault.place.file),
            "line": fault.place.position.line,
            "column": fault.place.position.column,
            "message": fault.message,
            "hint": fault.hint,
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
            {"id": _RULE, "shortDescription": {"text": "A fault that keeps a model from loading"}}
        ],
    }
    run = {
        "tool": {"driver": tool},
        "columnKind": "unicodeCodePoints",
        "results": [_sarif(fault) for fault in result.faults],
    }
    return json.dumps({"$schema": _SARIF, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def as_github(result: Result) -> str:
    """Return GitHub's workflow commands, which annotate the lines of a pull request.

    Their escapes are those of GitHub's toolkit, `packages/core/src/command.ts`.
    """
    lines = []
    for fault in result.faults:
        line, column = fault.place.position
        places = {"file": _relative_path(fault.place.file), "line": line, "col": column}
        properties = ",".join(
            f"{name}={_escaped(str(value), ':,')}" for name, value in places.items() if value
        )
        lines.append(f"::{fault.level.value} {properties}::{_escaped(fault.text)}\n")
    return "".join(lines)


def _escaped(text: str, more: str = "") -> str:
    """Return `text` with `%`, line ends and the characters in `more` as percent escapes."""
    for character in f"%\r\n{more}":
        text = text.replace(character, f"%{ord(character):02X}")
    return text


#: The functions that write a report, by the value of `--format`.
REPORTS: Mapping[str, Callable[[Result], str]] = {
    "text": as_text,
    "json": as_json,
    "sarif": as_sarif,
    "github": as_github,
}


def _sarif(fault: Fault) -> dict[str, object]:
    file = _relative_path(fault.place.file)
    uri = f"{'file://' if file.startswith('/') else ''}{quote(file)}"
    location: dict[str, object] = {"artifactLocation": {"uri": uri}}
    line, column = fault.place.position
    if line:
        location["region"] = {"startLine": line, **({"startColumn": column} if column else {})}
    return {
        "ruleId": _RULE,
        "level": fault.level.value,
        "message": {"text": fault.text},
        "locations": [{"physicalLocation": location}],
    }


def _location(fault: Fault) -> str:
    file = _relative_path(fault.place.file)
    return ":".join([file, *(str(number) for number in fault.place.position if number)])


def _relative_path(file: Path) -> str:
    whole = file.absolute()
    here = Path.cwd()
    return (whole.relative_to(here) if whole.is_relative_to(here) else whole).as_posix()


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
