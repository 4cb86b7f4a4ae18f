"""Settings that depend on each other: engine, devices, buffers, memory, and the device service.

Resident tensors stay in the device service between two models of an ensemble. The ensemble passes
handles: config.pbtxt declares a resident tensor as TYPE_UINT64 [ 4 ], a handle for each row.
`resident.<output>` gives the graph's type and dims, e.g. `FP32[384]`; `resident.<input>` also gives
the model whose handles are accepted: `FP32[384] of text_encoder`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ge_runtime import components
from ge_runtime.config import parameter_table as table
from ge_runtime.config.cards import NPU, executes_om, read_device_ids
from ge_runtime.config.model_tensors import ModelTensors
from ge_runtime.config.parameters import ConfigErrors, Parameters
from ge_runtime.specs import DType, TensorSpec

DEVICES: Final = ("cpu", "cuda:0", "npu:0")
"""Devices that messages show as examples; there are other GPUs and cards, such as npu:1."""

_ACCELERATOR: Final = re.compile(r"(cuda|npu):\d+", re.ASCII)
_EXAMPLES: Final = {"cpu": "cpu", "cuda": "GPUs, e.g. cuda:0", NPU: "cards, e.g. npu:0"}
"""The words for devices in messages, by device kind."""
_MOST_BUFFERS: Final = 4
_MOST_EXECUTION_S: Final = 900
"""A failed execution may wait twice this time; other threads wait 1800 s for its end."""


class EnginePlace(NamedTuple):
    """The device, executor and buffers of one of a model's engines."""

    device: str
    executor: int
    """Index among the model's executors on that device."""
    buffers: int
    """Index among the executor's buffer sets."""


@dataclass(frozen=True, slots=True)
class ServiceShare:
    """A model's share of the device service."""

    weight: float
    priority: int


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """Time limits of executions on a card, in seconds."""

    execution_s: float = table.EXECUTION_TIMEOUT.default
    """An execution that takes longer is assumed to hang."""
    operator_s: int | None = None
    """CANN ends longer operators; None: half of `execution_s`, at most the chip's maximum."""


def kind_of(device: str) -> str:
    """Return the kind of a device that config.pbtxt names: "npu" for "npu:0"."""
    return device.partition(":")[0]


def read_engine(parameters: Parameters, devices: Sequence[str]) -> str:
    """Return the name of an engine that the devices can execute, or "auto"."""
    engine, errors = parameters.get(table.ENGINE), parameters.errors
    entries = [entry for entry in components.engine_entries() if entry.name == engine]
    if engine != "auto" and not entries:
        known = ("auto", *components.engine_names())
        errors.add_unknown("parameter 'engine'", "engine", engine, known)
    elif engine != "auto" and {entry.device_kind for entry in entries}.isdisjoint(
        map(kind_of, devices)
    ):
        found = f"engine {engine} for devices {', '.join(devices)}"
        needed = ", or ".join(_EXAMPLES[entry.device_kind] for entry in entries)
        errors.add("parameter 'engine'", found, f"devices: {needed}")
    return engine


def read_devices(parameters: Parameters) -> tuple[str, ...]:
    """Return at least one device, all of one kind; a device may occur several times."""
    devices = read_device_ids(parameters) or parameters.get(table.DEVICES)
    for device in dict.fromkeys(devices):
        if device not in DEVICES and not _ACCELERATOR.fullmatch(device):
            parameters.errors.add_unknown("parameter 'devices'", "device", device, DEVICES)
    kinds = sorted({kind_of(device) for device in devices})
    # Only for known kinds: an unknown kind already has its error.
    if len(kinds) > 1 and all(kind in components.DEVICES for kind in kinds):
        parameters.errors.add("parameter 'devices'", " and ".join(kinds), "devices of one kind")
    return devices


def read_io_buffers(parameters: Parameters, devices: Sequence[str], *, engine: str) -> int:
    """Return the number of buffer sets of each executor: above 1 only for local .om files."""
    field, count = "parameter 'io_buffers'", parameters.get(table.IO_BUFFERS)
    errors = parameters.errors
    if count > _MOST_BUFFERS:
        expected = f"at most {_MOST_BUFFERS}: 2 hide all copies but the first"
        errors.add(field, f"'{parameters.text(table.IO_BUFFERS)}'", expected)
    elif count > 1:
        if not executes_om(devices, engine):
            found = f"{count} for engine {engine} on {', '.join(devices)}"
            errors.add(field, found, "1, or .om files on a card: devices: npu:0")
        if parameters.text(table.PLACEMENT) == "service":
            errors.add(field, f"{count}", "1 with placement: service, which has its own buffers")
    return count


def read_time_limits(parameters: Parameters, devices: Sequence[str], *, engine: str) -> TimeLimits:
    """Return the time limits of executions on a card."""
    errors = parameters.errors
    limits = TimeLimits(
        parameters.get(table.EXECUTION_TIMEOUT), parameters.get(table.OPERATOR_TIMEOUT)
    )
    for setting in (table.EXECUTION_TIMEOUT, table.OPERATOR_TIMEOUT):
        if (given := parameters.text(setting)) is None:
            continue
        field = f"parameter '{setting.key}'"
        if kind_of(devices[0]) != NPU or engine == "torch":
            found = f"'{given}' for engine {engine} on {', '.join(devices)}"
            errors.add(field, found, "nothing, or another engine on a card: devices: npu:0")
        if parameters.text(table.PLACEMENT) == "service":
            expected = "nothing with placement: service, which has its own limits"
            errors.add(field, f"'{given}'", expected)
    if limits.execution_s > _MOST_EXECUTION_S:
        field = "parameter 'execution_timeout_s'"
        errors.add(field, f"'{limits.execution_s}'", f"at most {_MOST_EXECUTION_S}")
    if limits.operator_s is not None and limits.operator_s >= limits.execution_s:
        expected = f"fewer than the {limits.execution_s} s of 'execution_timeout_s'"
        errors.add("parameter 'operator_timeout_s'", f"'{limits.operator_s}'", expected)
    return limits


def read_torch_compiler(parameters: Parameters, devices: Sequence[str], *, engine: str) -> str:
    """Return the compiler of the engine torch on a card: "ge" or "npugraph_ex"."""
    given = parameters.text(table.TORCH_COMPILER)
    if given is not None and (kind_of(devices[0]) != NPU or engine not in ("auto", "torch")):
        found = f"'{given}' for engine {engine} on {', '.join(devices)}"
        field = "parameter 'torch_compiler'"
        parameters.errors.add(field, found, "nothing, or engine: torch with devices: npu:0")
    return parameters.get(table.TORCH_COMPILER)


def read_unplanned(parameters: Parameters, devices: Sequence[str], *, engine: str) -> bool:
    """Return whether a file with free shapes may be executed outside the memory plan."""
    if not parameters.get(table.UNPLANNED):
        return False
    field = "parameter 'unplanned_memory'"
    if not executes_om(devices, engine):
        found = f"'allowed' for engine {engine} on {', '.join(devices)}"
        expected = "'refused', or an .om file on a card: devices: npu:0"
        parameters.errors.add(field, found, expected)
    if parameters.text(table.PLACEMENT) == "service":
        expected = "'refused' with placement: service, which plans the memory of all models"
        parameters.errors.add(field, "'allowed'", expected)
    return True


def read_rows(parameters: Parameters, max_batch_size: int) -> int:
    """Return the largest number of rows of a batch; 0 if the graph has no batch dimension."""
    field, rows = "parameter 'rows'", parameters.get(table.ROWS_MOST)
    if rows is None:
        return max_batch_size
    if max_batch_size:
        found = f"max_batch_size {max_batch_size}"
        parameters.errors.add(field, found, "0: otherwise it is the number of rows of a batch")
    if not parameters.texts(table.PREPARED):
        expected = "at least one: only the model's own code can make rows of such requests"
        parameters.errors.add(field, "no 'prepared.<tensor>'", expected)
    return rows


def read_pool_bytes(parameters: Parameters, *, engine: str) -> int | None:
    """Return the capacity of the workspace pool in bytes, or None without a pool."""
    mib = parameters.get(table.POOL_MIB)
    if mib is not None:
        return mib * 2**20
    if engine == "ge_session":
        expected = "MiB for all that GE allocates, as it does not report what its graph needs"
        parameters.errors.add("parameter 'workspace_pool_mib'", "none", expected)
    return None


def read_service_share(parameters: Parameters) -> ServiceShare | None:
    """Return the share of the device service; None for a model that executes in its own process."""
    if parameters.get(table.PLACEMENT) != "service":
        for setting in (table.SERVICE_WEIGHT, table.SERVICE_PRIORITY):
            if (given := parameters.text(setting)) is not None:
                expected = "nothing, or placement: service"
                parameters.errors.add(f"parameter '{setting.key}'", f"'{given}'", expected)
        return None
    if (given := parameters.text(table.POOL_MIB)) is not None:
        expected = "nothing: with placement: service the service has the workspace of all models"
        parameters.errors.add("parameter 'workspace_pool_mib'", f"'{given}'", expected)
    return ServiceShare(
        parameters.get(table.SERVICE_WEIGHT), parameters.get(table.SERVICE_PRIORITY)
    )


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
    """Number of rows of each output that fit on the device."""
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
            f"{min(self.spare_s, self.lease_s)} s if there is no room for other rows"
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
            errors.add(f"parameter 'resident.{both}'", "an input and an output", "one of the two")
        rows = _BATCHES * max_batch_size if rows is None else rows
        if outputs and not max_batch_size <= rows <= MOST_ROWS:
            expected = f"{max_batch_size}, a batch, to {MOST_ROWS}"
            errors.add("parameter 'resident_rows'", rows, expected)
        return cls(inputs, outputs, rows, reads, lease_s, spare_s)


def _tensor(
    name: str, text: str, declared: TensorSpec, errors: ConfigErrors, model: str, *, is_input: bool
) -> ResidentTensor | None:
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
