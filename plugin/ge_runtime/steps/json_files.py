"""Reads the JSON files that exporters write beside a graph."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from ge_runtime.errors import ArtifactFault

_ANY: Final[Mapping[str, object]] = MappingProxyType({})


def read_json(file: Path) -> Any:  # noqa: ANN401 - of a file
    """Return the content of a JSON file. Raises ArtifactFault if it is not JSON."""
    try:
        return json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ArtifactFault(f"{file}: found no JSON ({error}), expected a JSON file") from error


def read_fields(file: Path) -> dict[str, Any]:
    """Return the object in a JSON file. Raises ArtifactFault if the content is no object."""
    found = read_json(file)
    if not isinstance(found, dict):
        raise ArtifactFault(f"{file}: found {type(found).__name__}, expected a JSON object")
    return found


def check_fields(
    file: Path,
    fields: Mapping[str, Any],
    supported: Collection[str],
    ignored: Collection[str],
    expected: Mapping[str, object] = _ANY,
) -> None:
    """Refuse fields that would change a preprocessor in an unknown way.

    A field with null or false switches a step off, so it needs no support. `ignored` fields have
    no effect. A field in `expected` must have the value given there.

    Raises:
        ArtifactFault: A field has an unknown name or an unsupported value.
    """
    for name, value in fields.items():
        known = name in supported or name in ignored or value in (None, False)
        if not known or value != expected.get(name, value):
            raise ArtifactFault(
                f"{file}: found the field '{name}' with {value!r}, which ge_runtime does not "
                f"support; expected only: {', '.join(supported)}"
            )
