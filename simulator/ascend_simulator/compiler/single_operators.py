"""`atc --singleop`: compiles each operator that a JSON file lists to a separate file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ascend_simulator.codes import Format
from ascend_simulator.compiler.flags import CompileFault
from ascend_simulator.models.operators import DTYPES, OPERATORS, TYPE_NAMES, Operator, Tensor


def compile_operators(options: Mapping[str, str]) -> list[Path]:
    """Write a file for each operator of --singleop to the folder --output; return the files.

    Raises CompileFault for a malformed file, and for operators that are not simulated.
    """
    source, folder = options["singleop"], Path(options.get("output") or ".")
    try:
        listed = json.loads(Path(source).read_text(encoding="utf-8"))
        operators = [_operator(entry) for entry in listed]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise CompileFault("E10001", f"--singleop={source}: {error!r}") from error
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for index, operator in enumerate(operators):
        tensors = (*operator.inputs, *operator.outputs)
        words = (each for tensor in tensors for each in (tensor.dtype, tensor.format, *tensor.dims))
        file = folder / f"{index}_{operator.kind}_{'_'.join(map(str, words))}.om"
        file.write_bytes(operator.serialized())
        files.append(file)
    return files


def _operator(entry: Mapping[str, Any]) -> Operator:
    kind = entry["op"]
    if kind not in OPERATORS:
        raise CompileFault("E10055", f"operator {kind}: not simulated, only {', '.join(OPERATORS)}")
    inputs, outputs = (
        tuple(_tensor(each) for each in entry[name]) for name in ("input_desc", "output_desc")
    )
    attributes = sorted((each["name"], each["value"]) for each in entry.get("attr", ()))
    return Operator(kind, inputs, outputs, tuple(attributes))


def _tensor(entry: Mapping[str, Any]) -> Tensor:
    dtype = int(TYPE_NAMES[entry["type"]])
    content = b""
    if entry.get("is_const"):
        content = np.array(entry["const_value"], DTYPES[dtype]).tobytes()
    layout = int(Format[f"ACL_FORMAT_{entry['format']}"])
    return Tensor(dtype, tuple(entry["shape"]), layout, content.hex())
