"""Probes of Python packages beside pyACL: GE-PY and torchair. They need no device."""

from __future__ import annotations

import importlib
import inspect
from operator import attrgetter
from types import ModuleType
from typing import Final

import numpy as np

from ge_runtime.ascend.ge_process import MODULES, NAMES
from ge_runtime.cli.settle.lab import Absent, Answer, Lab

_NUMBERS: Final = (
    (0, np.float32, (0.1, 1 / 3, 1.2345678e-7, 3.4e38, -16777215.0)),
    (1, np.float16, (0.1, 1 / 3, 6.1e-5, 65504.0, -2049.0)),
    (9, np.int64, (0, -1, 2**53 - 1)),
    (12, np.bool_, (True, False)),
)
"""aclDataType, NumPy's type, values that a text may cut short."""


def torch_export(lab: Lab) -> Answer:
    """Look for what torchair exports, and takes of torch.export."""
    try:
        torchair = importlib.import_module("torchair")
    except ImportError:
        try:
            torchair = importlib.import_module("torch_npu.dynamo.torchair")
        except Exception as error:
            raise Absent(f"torchair cannot be imported: {error!r}") from error
    found = {
        name: _signature(getattr(torchair, name))
        for name in dir(torchair)
        if "export" in name.lower()
    }
    return Answer(f"torchair has {', '.join(found) or 'no export'}", found)


def ge_py(lab: Lab) -> Answer:
    """Compare GE-PY with what is used of it, as its source had it in version 0.0.1."""
    missing: list[str] = []
    signatures: dict[str, str] = {}
    for key, name in MODULES.items():
        module = _imported(name)
        for path in NAMES[key]:
            try:
                signatures[f"{name}.{path}"] = _signature(attrgetter(path)(module))
            except AttributeError:
                missing.append(f"{name}.{path}")
    lacks = f"lacks {', '.join(missing)}" if missing else "has all names that are used"
    return Answer(f"it {lacks}", {"missing": missing, "signatures": signatures})


def ge_numbers(lab: Lab) -> Answer:
    """Make tensors of GE-PY of known numbers, and read them back."""
    graph, types = _imported(MODULES["graph"]), _imported(MODULES["types"])
    found = {}
    for number, dtype, values in _NUMBERS:
        given = np.array(values, dtype)
        tensor = graph.Tensor(
            given.tolist(), None, types.DataType(number), types.Format.FORMAT_ND, [len(values)]
        )
        read = np.asarray(tensor.get_data(), dtype).astype(np.float64)
        exact = given.astype(np.float64)
        found[dtype.__name__] = float(np.max(np.abs(read - exact) / np.maximum(1e-30, abs(exact))))
    shown = ", ".join(f"{name} {error:.1g}" for name, error in found.items())
    return Answer(f"the largest error, as a share of the number: {shown}")


def _imported(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise Absent(f"{name} cannot be imported: {error!r}") from error


def _signature(function: object) -> str:
    try:
        return str(inspect.signature(function))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return "?"
