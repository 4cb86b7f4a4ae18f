"""Configurations that acl.init() and mdl.set_dump() are given: JSON files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from ascend_simulator.codes import Code, Refused
from ascend_simulator.violations import declare

DUMP_AND_PROFILER = declare(
    "process.dump-and-profiler", "A configuration has dump or profiler, not both."
)

_DEEPEST: Final = 10  # objects, and arrays, within each other


def read_config(path: str, what: str) -> dict[str, Any]:
    """The file's object; an empty file is one. Refused: INVALID_FILE, PARSE_FILE."""
    try:
        text = Path(path).read_text()
    except OSError as error:
        raise Refused(Code.INVALID_FILE, f"{what}: {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise Refused(Code.PARSE_FILE, f"{what}: {path}: {error}") from error
    try:
        config = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise Refused(Code.PARSE_FILE, f"{what}: {path}: {error}") from error
    if not isinstance(config, dict):
        raise Refused(Code.PARSE_FILE, f"{what}: {path}: found no JSON object")
    for kind in (dict, list):
        if _depth(config, kind) > _DEEPEST:
            raise Refused(
                Code.PARSE_FILE,
                f"{what}: {path}: found more than {_DEEPEST} {kind.__name__}s within each other",
            )
    return config


def _depth(config: object, kind: type) -> int:
    if isinstance(config, dict):
        inner = [_depth(item, kind) for item in config.values()]
    elif isinstance(config, list):
        inner = [_depth(item, kind) for item in config]
    else:
        return 0
    return isinstance(config, kind) + max(inner, default=0)
