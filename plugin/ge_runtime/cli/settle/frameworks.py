"""Probes of Python packages beside pyACL: GE-PY and torchair. They need no device."""

from __future__ import annotations

import inspect
from operator import attrgetter
from typing import Final

import numpy as np

from ge_runtime.ascend.ge_py import GE_PY_MODULES, GE_PY_NAMES
from ge_runtime.ascend.installation import Module, import_cann_module
from ge_runtime.cli.settle.lab import Absent, Answer, Lab

_NUMBERS: Final = (
    (0, np.float32, 3, np.int32, (0.1, 1 / 3, 1.2345678e-7, 3.4e38, -16777215.0)),
    (1, np.float16, 6, np.int16, (0.1, 1 / 3, 6.1e-5, 65504.0, -2049.0)),
    (9, np.int64, 9, np.int64, (0, -1, 2**53 - 1)),
    (12, np.bool_, 4, np.uint8, (True, False)),
)
"""aclDataType and NumPy's type, the same of integers of that size, values that a text may cut."""


def torch_export(lab: Lab) -> Answer:
    """Look for what torchair exports, and takes of torch.export."""
    try:
        torchair = import_cann_module("torchair")
    except ImportError:
        try:
            torchair = import_cann_module("torch_npu.dynamo.torchair")
        except ImportError as error:
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
    for key, name in GE_PY_MODULES.items():
        module = _imported(name)
        for path in GE_PY_NAMES[key]:
            try:
                signatures[f"{name}.{path}"] = _signature(attrgetter(path)(module))
            except AttributeError:
                missing.append(f"{name}.{path}")
    lacks = f"lacks {', '.join(missing)}" if missing else "has all names that are used"
    return Answer(f"it {lacks}", {"missing": missing, "signatures": signatures})


def ge_numbers(lab: Lab) -> Answer:
    """Make tensors of GE-PY of known numbers, and read them back, then as integers."""
    graph, types = _imported(GE_PY_MODULES["graph"]), _imported(GE_PY_MODULES["types"])
    told, bits = {}, {}
    for number, dtype, whole_number, whole, values in _NUMBERS:
        given = np.array(values, dtype)
        tensor = graph.Tensor(
            given.tolist(), None, types.DataType(number), types.Format.FORMAT_ND, [len(values)]
        )
        try:
            told[dtype.__name__] = str(tensor.get_data())
        except ValueError as error:
            told[dtype.__name__] = f"ValueError, {error}"
        tensor.set_data_type(types.DataType(whole_number))
        read = np.asarray(tensor.get_data(), whole).view(dtype)
        bits[dtype.__name__] = read.tobytes() == given.tobytes()
    right = "yes" if all(bits.values()) else f"no: {bits}"
    shown = "; ".join(f"{name}: {text}" for name, text in told.items())
    return Answer(f"to the bit as integers: {right}; by itself {shown}", {"bits": bits, **told})


def _imported(name: str) -> Module:
    try:
        return import_cann_module(name)
    except ImportError as error:
        raise Absent(f"{name} cannot be imported: {error!r}") from error


def _signature(function: object) -> str:
    try:
        return str(inspect.signature(function))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return "?"
