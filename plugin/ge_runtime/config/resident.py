"""Tensors that stay in the device service between two models of an ensemble.

The ensemble passes handles: config.pbtxt declares a resident tensor as TYPE_UINT64 [ 4 ], a handle
for each row. `resident.<output>` gives the graph's type and dims, e.g. `FP32[384]`;
`resident.<input>` also gives the model whose handles are accepted: `FP32[384] of text_encoder`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from ge_runtime.config import parameter_table as table
from ge_runtime.config.execution_settings import ServiceShare
from ge_runtime.config.model_tensors import ModelTensors
from ge_runtime.config.parameters import ConfigErrors, Parameters
from ge_runtime.specs import DType, TensorSpec

HANDLE_DTYPE: Final = DType.UINT64
HANDLE_DIMS: Final = (4,)
"""Dims of a row's handle, as config.pbtxt declares it."""

MOST_ROWS: Final = 1_000_000
_ALIGNMENT: Final = 64
_BATCHES: Final = 4
_NUMBERS: Final = (
    table.RESIDENT_ROWS,
    table.RESIDENT_READS,
    table.RESIDENT_S,
    table.RESIDENT_SPARE_S,
)
_FORM: Final = re.compile(r"([A-Z]+\d*)\[(\d+(?:,\s*\d+)*)\](?:\s+of\s+(\S+))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class ResidentTensor:
    """A tensor of a graph whose rows stay on the device."""

    model: str
    """The model that computes it."""
    dtype: DType
    dims: tuple[int, ...]
    """Dims of a row."""

    @property
    def row_bytes(self) -> int:
        """Size of a row in bytes."""
        return math.prod(self.dims) * self.dtype.numpy.itemsize

    @property
    def stride(self) -> int:
        """Bytes from one row to the next, aligned for a card's queued copies."""
        return -(-self.row_bytes // _ALIGNMENT) * _ALIGNMENT

    def __str__(self) -> str:
        return f"{self.dtype.value}[{','.join(map(str, self.dims))}] of {self.model}"


@dataclass(frozen=True, slots=True)
class Resident:
    """The tensors of a model whose rows stay on the device."""

    inputs: Mapping[str, ResidentTensor] = field(default_factory=dict)
    outputs: Mapping[str, ResidentTensor] = field(default_factory=dict)
    rows: int = 0
    """Number of rows of each output that there is room for."""
    reads: int = 1
    lease_s: int = 60
    spare_s: int = 5

    @property
    def tensors(self) -> Mapping[str, ResidentTensor]:
        """All resident tensors by name; no input has the name of an output."""
        return {**self.inputs, **self.outputs}

    @property
    def report(self) -> list[str]:
        """The resident tensors, as lines of the load report."""
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
        *,
        model: str,
        max_batch_size: int,
    ) -> Resident:
        """Read config.pbtxt."""
        given, errors = parameters.texts(table.RESIDENT), parameters.errors
        rows = parameters.get(table.RESIDENT_ROWS)
        reads = parameters.get(table.RESIDENT_READS)
        lease_s = parameters.get(table.RESIDENT_S)
        spare_s = parameters.get(table.RESIDENT_SPARE_S)
        if not given:
            for setting in _NUMBERS:
                if parameters.text(setting) is not None:
                    errors.add(f"parameter '{setting.key}'", "no 'resident.<output>'", "one")
            return cls()
        if share is None:
            errors.add("parameter 'placement'", "local", "service, where 'resident' has tensors")
        if max_batch_size == 0:
            errors.add("max_batch_size", 0, "at least 1: rows have handles, not batches")
        inputs: dict[str, ResidentTensor] = {}
        outputs: dict[str, ResidentTensor] = {}
        sides = ((tensors.inputs, inputs, True), (tensors.outputs, outputs, False))
        known = (*tensors.inputs, *tensors.outputs)
        for _, name, text in parameters.entries(table.RESIDENT, "input or output", known):
            for declared, read, is_input in sides:
                if name in declared:
                    tensor = _tensor(name, text, declared[name], errors, model, is_input=is_input)
                    if tensor is not None:
                        read[name] = tensor
        if {*inputs} & {*outputs}:
            both = ", ".join(sorted({*inputs} & {*outputs}))
            errors.add(f"parameter 'resident.{both}'", "an input and an output", "one of both")
        rows = _BATCHES * max_batch_size if rows is None else rows
        if outputs and not max_batch_size <= rows <= MOST_ROWS:
            expected = f"{max_batch_size}, a batch, to {MOST_ROWS}"
            errors.add("parameter 'resident_rows'", rows, expected)
        return cls(inputs, outputs, rows, reads, lease_s, spare_s)


def _tensor(
    name: str,
    text: str,
    declared: TensorSpec,
    errors: ConfigErrors,
    model: str,
    *,
    is_input: bool,
) -> ResidentTensor | None:
    """Read the parameter of one tensor; None after an error."""
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
