"""The JSON configuration files of acl.init() and mdl.set_dump()."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from ascend_simulator.codes import Code, Refused
from ascend_simulator.violations import declare

DUMP_AND_PROFILER = declare(
    "process.dump-and-profiler", "A configuration must not have both dump and profiler."
)

_DEEPEST: Final = 10  # nested objects, and nested arrays


def read_config(path: str, what: str) -> dict[str, Any]:
    """Return the file's JSON object; an empty file is an empty object.

    Refused: INVALID_FILE, PARSE_FILE.
    """
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
        raise Refused(Code.PARSE_FILE, f"{what}: {path}: not a JSON object")
    for kind in (dict, list):
        if _depth(config, kind) > _DEEPEST:
            raise Refused(
                Code.PARSE_FILE,
                f"{what}: {path}: found more than {_DEEPEST} nested {kind.__name__}s",
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
