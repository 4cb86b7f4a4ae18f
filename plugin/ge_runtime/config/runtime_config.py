"""RuntimeConfig: all that config.pbtxt says of one model.

All errors are collected and raised together, each with its field, what was found and what was
expected. What each key means is documented where it is read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from itertools import chain

from ge_runtime.config.aipp import Aipp, DeclaredImages, read_aipp
from ge_runtime.config.axis_sizes import AxisSizes, GearSizes, check_reproducible, read_gears
from ge_runtime.config.captures import Window, read_window
from ge_runtime.config.execution_settings import (
    EnginePlace,
    GivenCost,
    ServiceShare,
    kind_of,
    read_choice,
    read_cost,
    read_cost_cache,
    read_devices,
    read_engine,
    read_histogram,
    read_io_buffers,
    read_pool_bytes,
    read_rows,
    read_service_share,
    read_stages,
    read_threads,
    read_unplanned,
)
from ge_runtime.config.generated_inputs import (
    BatchInput,
    GeneratedInputs,
    axes_told_by,
    counted_targets,
    read_batch_inputs,
)
from ge_runtime.config.jpeg import JpegPicture, read_jpeg
from ge_runtime.config.model_tensors import ModelTensors
from ge_runtime.config.npu_ge import NPU, check_static_model, read_atc_flags, read_ge_options
from ge_runtime.config.padding import (
    PaddingRule,
    read_axis_lengths,
    read_defaults,
    read_packing,
    read_padding_rules,
    read_pads,
)
from ge_runtime.config.resident import Resident
from ge_runtime.config.tensor_rules import BatchAxes, SequenceStates, ValueRange, read_ranges
from ge_runtime.config.triton_config import (
    ConfigErrors,
    Parameters,
    read_instances,
    read_max_batch_size,
)
from ge_runtime.specs import ROWS, Number, TensorSpec


@dataclass(frozen=True, slots=True)
class RuntimeConfig:
    """What config.pbtxt says of one model, consistent in itself, not yet held against its graph."""

    model: str
    engine: str
    """The name of an engine, or "auto"."""
    max_batch_size: int
    """0: requests have no batch dimension."""
    rows: int
    """The most rows that one execution takes, at least 1."""
    batched: bool
    """Whether executions have a batch dimension: that of the requests, or of prepared tensors.

    Without it each request is executed alone.
    """
    inputs: tuple[TensorSpec, ...]
    """What requests bring. UNKNOWN dims and BYTES only where the graph need not take them."""
    defaults: Mapping[str, Number]
    """Optional request input, all of them: its value where a request lacks it.

    An input that is in `axis_lengths` holds the size of that axis instead.
    """
    prepared: tuple[TensorSpec, ...]
    """What the model's own code makes of `inputs`; if any, the graph takes these instead."""
    outputs: tuple[TensorSpec, ...]
    """What the graph gives; without the batch dimension, as all specs here."""
    derived: tuple[TensorSpec, ...]
    """What the model's own code makes of the graph's outputs."""
    passthrough: Mapping[str, str]
    """Output: the request input that it is, which the graph need not take."""
    axis_sizes: AxisSizes
    """The sizes that axes may have."""
    axis_lengths: Mapping[str, str]
    """Axis: the request input or prepared tensor that holds each row's true length along it."""
    masks: Mapping[str, tuple[str, ...]]
    """Graph input: the axes of the mask that is generated for it."""
    lengths: Mapping[str, str]
    """Graph input: the axis whose true lengths are generated for it."""
    positions: Mapping[str, str]
    """Graph input: the axis along which positions are generated for it."""
    offsets: Mapping[str, str]
    """Graph input: the axis whose accumulated true lengths are generated for it."""
    constants: Mapping[str, tuple[str, ...]]
    """Graph input: the elements that it has in every execution, as they are written."""
    states: SequenceStates
    """What of sequences is kept from one request to the next."""
    batch_axes: BatchAxes
    """Where rows lie in the graph's tensors."""
    batch_inputs: tuple[BatchInput, ...]
    """What Triton's own `batch_input` asks to be generated."""
    told_axes: frozenset[str]
    """The axes along which generated inputs, or packing, tell the graph where data ends."""
    padding: Mapping[str, PaddingRule]
    """Every axis: whether sizes along it may differ within one execution."""
    ranges: Mapping[str, ValueRange]
    """Request input or prepared tensor: the values that its elements may have."""
    pads: Mapping[str, Number]
    """Request input or prepared tensor: the value of its padding, where that is not 0."""
    aipp: Mapping[str, Aipp]
    """Request input or prepared tensor: how the graph's input is made of its images."""
    jpeg: Mapping[str, JpegPicture]
    """Prepared tensor: the input whose JPEG files it is decoded from."""
    gears: Mapping[tuple[str, ...], GearSizes | int]
    """Axes, ROWS for the rows among them: their gears, smallest first; or how many to derive."""
    oversize: str
    """"error" or "fallback": what becomes of a request that no gear holds."""
    packing: str | None
    """The axis along which rows are joined instead of padded."""
    cost: GivenCost | None
    """What an execution costs; None: to be timed."""
    cost_cache: str
    """Where what was timed is kept: "auto", "off", or a folder, relative to the version folder."""
    intra_op_threads: int
    devices: tuple[str, ...]
    """Of one kind, one engine and executor each; a device may be there several times."""
    io_buffers: int
    """Buffer sets that each executor has, whose copies and executions overlap."""
    service_share: ServiceShare | None
    """The model's share of the device service; None: it executes in its own process."""
    resident: Resident
    """Tensors that stay in the device service between models."""
    stages: tuple[str, ...]
    """The names of the graphs that run in this order; empty: the one artifact."""
    workspace_pool_bytes: int | None
    unplanned_memory: bool
    """Whether a file of free shapes may be executed, whose memory is in no plan."""
    window: Window | None
    """Which executions on a card are profiled or dumped; None: none."""
    histogram: str | None
    """Where sizes of requests are recorded, relative to the version folder and inside it."""
    warmup: str
    """"gears" or "none"."""
    early_answers: bool
    """Whether answers leave with their execution; else with the last one of the request batch."""
    load_check: bool
    """Whether a load ends with seeded requests, whose answers must depend on no company."""
    reproducible: bool
    """Whether each request is executed at its own gear, so that no bit depends on company."""
    ge_options: Mapping[str, str]
    """Option of Ascend's compiler, one of ATC_FLAGS or for ge_session GE_LEVELS: its value."""
    atc_flags: Mapping[str, str]
    """Further flags of ATC, without their dashes: their values. For `ge-runtime build`."""

    @property
    def sources(self) -> tuple[TensorSpec, ...]:
        """What batches are made of: the prepared tensors if there are any, else the inputs."""
        return self.prepared or self.inputs

    @property
    def results(self) -> tuple[str, ...]:
        """The names of all that the graph is asked for: outputs, and the next states."""
        outputs = (spec.name for spec in self.outputs)
        return tuple(dict.fromkeys((*outputs, *self.states.outputs.values())))

    @property
    def images(self) -> Mapping[str, DeclaredImages]:
        """The inputs, or prepared tensors, that are images."""
        specs = {spec.name: spec for spec in self.sources}
        return {name: DeclaredImages(specs[name], aipp) for name, aipp in self.aipp.items()}

    @property
    def limits(self) -> Mapping[str, int]:
        """The largest size of each axis."""
        return self.axis_sizes.limits

    @property
    def equal_axes(self) -> tuple[str, ...]:
        """The axes along which only equal sizes share an execution."""
        return tuple(axis for axis, rule in self.padding.items() if rule is PaddingRule.EQUAL)

    @property
    def device_kind(self) -> str:
        """Of all its devices: "cpu", "cuda" or "npu"."""
        return kind_of(self.devices[0])

    @property
    def places(self) -> tuple[EnginePlace, ...]:
        """Of each engine of an instance: those on one executor share its workspace."""
        return tuple(
            EnginePlace(device, self.devices[:index].count(device), buffers)
            for index, device in enumerate(self.devices)
            for buffers in range(self.io_buffers)
        )

    def with_resident_as_computed(self) -> RuntimeConfig:
        """With the graph's tensors where requests have handles: for whoever runs it by itself."""

        def own(spec: TensorSpec) -> TensorSpec:
            tensor = self.resident.tensors.get(spec.name)
            return spec if tensor is None else TensorSpec(spec.name, tensor.dtype, tensor.dims)

        return replace(
            self, inputs=tuple(map(own, self.inputs)), outputs=tuple(map(own, self.outputs))
        )

    @property
    def rows_key(self) -> str:
        """The key in config.pbtxt that says how many rows an execution takes."""
        return "rows" if self.batched and not self.max_batch_size else "max_batch_size"

    @classmethod
    def parse(
        cls, model_config: Mapping[str, object], *, cores: int, derived: Collection[str] = ()
    ) -> RuntimeConfig:
        """The configuration in `model_config`, the JSON that Triton hands to a model, parsed.

        cores: those this process may use; the engines of all instances share them.
        derived: the names of the outputs that the model's own code makes.
        Raises ConfigFault with every error found.
        """
        errors = ConfigErrors(str(model_config.get("name", "")))
        config = _read(model_config, cores, derived, errors)
        errors.raise_any()
        return config


def _read(
    model_config: Mapping[str, object], cores: int, derived: Collection[str], errors: ConfigErrors
) -> RuntimeConfig:
    """The configuration, which counts only if there are no errors."""
    # In the order in which they need each other: tensors have axes, axes limits, limits gears.
    max_batch_size = read_max_batch_size(model_config, errors)
    parameters = Parameters.read(model_config, errors)
    rows = read_rows(parameters, max_batch_size, errors)
    batched = rows > 0
    tensors = ModelTensors.read(
        model_config,
        parameters,
        errors,
        derived=derived,
        batched=batched,
        rows_first=batched and max_batch_size == 0,
    )
    devices = read_devices(parameters, errors)
    engine = read_engine(parameters, devices, errors)
    # Shared out: engines that all take all cores are a common cause of slow servers.
    share = cores // (read_instances(model_config, errors) * len(devices))
    axis_sizes = AxisSizes.read(parameters, tensors, errors)
    limits = axis_sizes.limits
    axis_lengths = read_axis_lengths(parameters, tensors, limits, errors)
    oversize = read_choice("oversize", ("error", "fallback"), parameters, errors)
    gears = read_gears(
        parameters,
        tensors,
        axis_sizes,
        errors,
        rows=rows,
        fallback=oversize == "fallback",
        compiled=kind_of(devices[0]) == NPU,
    )
    geared = set(chain.from_iterable(gears))
    check_static_model(parameters, tensors.axes, geared, errors, rows=rows)
    generated = GeneratedInputs(parameters, tensors, errors, batched=batched)
    masks, lengths = generated.masks(), generated.lengths()
    positions, offsets = generated.positions(), generated.offsets()
    constants = generated.constants()
    states = SequenceStates.read(
        model_config, parameters, generated, errors, max_batch_size=max_batch_size
    )
    batch_inputs = read_batch_inputs(model_config, tensors, limits, generated, errors, rows=rows)
    packing = read_packing(
        parameters, tensors, masks, geared, axis_sizes.steps, errors, batched=batched
    )
    batch_axes = BatchAxes.read(parameters, tensors, errors, batched=batched, packing=packing)
    defaults = read_defaults(parameters, tensors, axis_lengths.values(), errors)
    pads = read_pads(parameters, tensors, errors, rows=ROWS in geared)
    # What an input of lengths has by default is the size of its axis.
    constant_defaults = {n: own for n, own in defaults.items() if n not in axis_lengths.values()}
    laid = {"pad": pads, "default": constant_defaults}
    ranges = read_ranges(parameters, tensors, laid, errors)
    reproducible = read_choice("reproducible", ("false", "true"), parameters, errors) == "true"
    if reproducible:
        counting = (*offsets, *counted_targets(batch_inputs))
        check_reproducible(parameters, gears, tensors.axes, counting, errors, rows=rows)
    service_share = read_service_share(parameters, errors)
    told = {*chain.from_iterable(masks.values()), *lengths.values(), *offsets.values()}
    told |= axes_told_by(batch_inputs, tensors)
    told |= {packing} if packing is not None else set()
    return RuntimeConfig(
        model=str(model_config.get("name", "")),
        engine=engine,
        max_batch_size=max_batch_size,
        rows=max(1, rows),
        batched=batched,
        inputs=tuple(tensors.inputs.values()),
        defaults=defaults,
        prepared=tuple(tensors.prepared.values()),
        outputs=tuple(tensors.outputs.values()),
        derived=tensors.derived,
        passthrough=tensors.passthrough,
        axis_sizes=axis_sizes,
        axis_lengths=axis_lengths,
        masks=masks,
        lengths=lengths,
        positions=positions,
        offsets=offsets,
        constants=constants,
        states=states,
        batch_axes=batch_axes,
        batch_inputs=batch_inputs,
        told_axes=frozenset(told),
        padding=read_padding_rules(
            parameters,
            tensors,
            limits,
            errors,
            told=told,
            axis_lengths=axis_lengths,
            packing=packing,
        ),
        ranges=ranges,
        pads={**{name: own.nearest(0) for name, own in ranges.items() if 0 not in own}, **pads},
        aipp=read_aipp(parameters, tensors, errors, engine=engine),
        jpeg=read_jpeg(parameters, tensors, limits, errors, max_batch_size=max_batch_size),
        gears=gears,
        oversize=oversize,
        packing=packing,
        cost=read_cost(parameters, errors),
        cost_cache=read_cost_cache(parameters, errors),
        intra_op_threads=read_threads(parameters, errors, share=share),
        devices=devices,
        io_buffers=read_io_buffers(parameters, devices, errors, engine=engine),
        service_share=service_share,
        resident=Resident.read(
            parameters,
            tensors,
            service_share,
            errors,
            model=str(model_config.get("name", "")),
            max_batch_size=max_batch_size,
        ),
        stages=read_stages(parameters, errors),
        workspace_pool_bytes=read_pool_bytes(parameters, errors, engine=engine),
        unplanned_memory=read_unplanned(parameters, devices, errors, engine=engine),
        window=read_window(parameters, devices, errors, engine=engine),
        histogram=read_histogram(parameters, errors),
        warmup=read_choice("warmup", ("gears", "none"), parameters, errors),
        early_answers=read_choice("early_answers", ("true", "false"), parameters, errors) == "true",
        load_check=read_choice("load_check", ("on", "off"), parameters, errors) == "on",
        reproducible=reproducible,
        ge_options=read_ge_options(parameters, devices, errors, engine=engine),
        atc_flags=read_atc_flags(parameters, devices, errors, engine=engine),
    )
