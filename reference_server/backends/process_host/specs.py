"""An instance's specification as JSON's values."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from reference_server.backends.python_host.inline import InstanceSpec


def pack(spec: InstanceSpec) -> dict[str, Any]:
    """All that tells an instance from others: each field with the kind of its value."""
    return {field.name: _packed(getattr(spec, field.name)) for field in dataclasses.fields(spec)}


def _packed(value: object) -> tuple[str, object]:
    if isinstance(value, Path):
        return "path", str(value)
    if isinstance(value, frozenset):
        return "set", sorted(value)
    return "plain", value


def unpack(values: dict[str, Any]) -> InstanceSpec:
    """The specification that was packed."""
    kinds: dict[str, Callable[[Any], Any]] = {
        "path": Path,
        "set": frozenset,
        "plain": lambda value: value,
    }
    return InstanceSpec(**{name: kinds[kind](value) for name, (kind, value) in values.items()})
