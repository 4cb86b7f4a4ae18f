"""Tensors that stay in the device service between two models of an ensemble, which pass handles on.

- `resident.<output>`: the graph's type and dims of the output, e.g. `FP32[384]`. Its rows stay on
  the device; config.pbtxt declares the output as what the ensemble passes on, TYPE_UINT64 [ 4 ]: a
  handle for each row.
- `resident.<input>`: the same, and the model whose handles are taken: `FP32[384] of text_encoder`.
- `resident_rows`: how many rows there is room for, of all outputs and requests between the models;
  four batches unless given. `resident_reads`: how often a row is read before it goes; 1.
- `resident_s`: the seconds after which a row goes that was not read as often; 60.
- `resident_spare_s`: the same where there is no room for others; 5.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from ge_runtime.config.execution_settings import ServiceShare
from ge_runtime.config.model_tensors import ModelTensors
from ge_runtime.config.triton_config import ConfigErrors, Parameters, read_whole
from ge_runtime.specs import DType, TensorSpec

HANDLE_DTYPE: Final = DType.UINT64
HANDLE_DIMS: Final = (4,)
"""Of a row's handle, as config.pbtxt declares it."""

MOST_ROWS: Final = 1_000_000
_ALIGNMENT: Final = 64
_BATCHES: Final = 4
_SETTINGS: Final = {
    "resident_rows": 0,
    "resident_reads": 1,
    "resident_s": 60,
    "resident_spare_s": 5,
}
_FORM: Final = re.compile(r"([A-Z]+\d*)\[(\d+(?:,\s*\d+)*)\](?:\s+of\s+(\S+))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class ResidentTensor:
    """A tensor as the graphs have it whose rows stay on the device."""

    model: str
    """The one that gives it."""
    dtype: DType
    dims: tuple[int, ...]
    """Of a row."""

    @property
    def row_bytes(self) -> int:
        """Of a row."""
        return math.prod(self.dims) * self.dtype.numpy.itemsize

    @property
    def stride(self) -> int:
        """Bytes from one row's place to the next: what a card's queued copies want."""
        return -(-self.row_bytes // _ALIGNMENT) * _ALIGNMENT

    def __str__(self) -> str:
        return f"{self.dtype.value}[{','.join(map(str, self.dims))}] of {self.model}"


@dataclass(frozen=True, slots=True)
class Resident:
    """What of a model's tensors stays on the device."""

    inputs: Mapping[str, ResidentTensor] = field(default_factory=dict)
    outputs: Mapping[str, ResidentTensor] = field(default_factory=dict)
    rows: int = 0
    """Room for each output."""
    reads: int = 1
    lease_s: int = 60
    spare_s: int = 5

    @property
    def tensors(self) -> Mapping[str, ResidentTensor]:
        """By name; a name is an input's or an output's."""
        return {**self.inputs, **self.outputs}

    @property
    def report(self) -> list[str]:
        """What stays where, for people."""
        taken = [f"input '{name}': rows of {tensor}" for name, tensor in self.inputs.items()]
        return taken + [
            f"output '{name}': {self.rows} rows of {tensor}, {self.rows * tensor.stride:,} bytes; "
            f"each is read {self.reads} time(s), within {self.lease_s} s, or "
            f"{min(self.spare_s, self.lease_s)} s where there is no room for others"
            for name, tensor in self.outputs.items()
        ]

    @classmethod
    def read(
        cls,
        parameters: Parameters,
        tensors: ModelTensors,
        share: ServiceShare | None,
        errors: ConfigErrors,
        *,
        model: str,
        max_batch_size: int,
    ) -> Resident:
        """What config.pbtxt says."""
        given = parameters.families["resident"]
        numbers = {
            key: read_whole(f"parameter '{key}'", parameters.settings[key], errors, least=1)
            for key in _SETTINGS
            if key in parameters.settings
        }
        if not given:
            for key in numbers:
                errors.add(f"parameter '{key}'", "no 'resident.<output>'", "one")
            return cls()
        if share is None:
            errors.add("parameter 'placement'", "local", "service, where 'resident' has tensors")
        if max_batch_size == 0:
            errors.add("max_batch_size", 0, "at least 1: rows have handles, not batches")
        inputs: dict[str, ResidentTensor] = {}
        outputs: dict[str, ResidentTensor] = {}
        sides = ((tensors.inputs, inputs, True), (tensors.outputs, outputs, False))
        for name, text in given.items():
            if name not in tensors.inputs and name not in tensors.outputs:
                known = (*tensors.inputs, *tensors.outputs)
                errors.add_unknown(f"parameter 'resident.{name}'", "input or output", name, known)
            for declared, read, is_input in sides:
                if name in declared:
                    tensor = _tensor(name, text, declared[name], errors, model, is_input=is_input)
                    if tensor is not None:
                        read[name] = tensor
        if {*inputs} & {*outputs}:
            both = ", ".join(sorted({*inputs} & {*outputs}))
            errors.add(f"parameter 'resident.{both}'", "an input and an output", "one of both")
        values = {**_SETTINGS, "resident_rows": _BATCHES * max_batch_size, **numbers}
        rows = values["resident_rows"]
        if outputs and not max_batch_size <= rows <= MOST_ROWS:
            expected = f"{max_batch_size}, a batch, to {MOST_ROWS}"
            errors.add("parameter 'resident_rows'", rows, expected)
        return cls(
            inputs,
            outputs,
            rows,
            values["resident_reads"],
            values["resident_s"],
            values["resident_spare_s"],
        )


def _tensor(
    name: str,
    text: str,
    declared: TensorSpec,
    errors: ConfigErrors,
    model: str,
    *,
    is_input: bool,
) -> ResidentTensor | None:
    """What a parameter says of a tensor; None after an error."""
    side = "input" if is_input else "output"
    if (declared.dtype, declared.dims) != (HANDLE_DTYPE, HANDLE_DIMS):
        expected = "UINT64[4], the handle of a row, which the server passes on"
        errors.add(f"{side} '{name}'", f"{declared.dtype.value}{[*declared.dims]}", expected)
        return None
    form = _FORM.fullmatch(text)
    dtype = None
    if form is not None and form[1] in DType.__members__:
        dtype = DType[form[1]]
    if form is None or dtype is None or dtype is DType.BYTES or (form[3] is None) is is_input:
        example = "FP32[384] of text_encoder" if is_input else "FP32[384]"
        errors.add(f"parameter 'resident.{name}'", f"'{text}'", f"type and dims, e.g. {example}")
        return None
    dims = tuple(int(size) for size in form[2].split(","))
    if 0 in dims:
        errors.add(f"parameter 'resident.{name}'", f"'{text}'", "sizes of at least 1")
        return None
    return ResidentTensor(form[3] or model, dtype, dims)
