"""RuntimeConfig: the complete configuration of one model.

All errors are collected and raised together, each with its field, what was found and what was
expected.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from itertools import chain

from ge_runtime.config import parameter_table as table
from ge_runtime.config.axis_sizes import AxisSizes, GearSizes, check_reproducible, read_gears
from ge_runtime.config.cards import (
    NPU,
    Window,
    check_static_model,
    read_atc_flags,
    read_ge_options,
    read_window,
)
from ge_runtime.config.execution_settings import (
    EnginePlace,
    Resident,
    ServiceShare,
    TimeLimits,
    kind_of,
    read_devices,
    read_engine,
    read_io_buffers,
    read_pool_bytes,
    read_rows,
    read_service_share,
    read_time_limits,
    read_torch_compiler,
    read_unplanned,
)
from ge_runtime.config.generated_inputs import (
    BatchInput,
    GeneratedInputs,
    counted_targets,
    marked_axes,
    read_batch_inputs,
)
from ge_runtime.config.images import Aipp, DeclaredImages, JpegPicture, read_aipp, read_jpeg
from ge_runtime.config.model_tensors import ModelTensors, read_instances, read_max_batch_size
from ge_runtime.config.parameters import ConfigErrors, GivenCost
from ge_runtime.config.sequence_states import SequenceStates, check_growing_states
from ge_runtime.config.tensor_rules import (
    BatchAxes,
    PaddingRule,
    ValueRange,
    read_axis_lengths,
    read_packing,
    read_padding_rules,
    read_values,
)
from ge_runtime.specs import ROWS, Number, Relation, TensorSpec


@dataclass(frozen=True, slots=True)
class RuntimeConfig:
    """The configuration of one model: consistent, but not yet compared with its graph."""

    model: str
    engine: str
    """The name of an engine, or "auto"."""
    max_batch_size: int
    """0 if requests have no batch dimension."""
    rows: int
    """Largest number of rows of one execution, at least 1."""
    batched: bool
    """True if executions have a batch dimension: that of the requests, or of prepared tensors.

    Without it each request is executed alone.
    """
    inputs: tuple[TensorSpec, ...]
    """Tensors of requests. UNKNOWN dims and BYTES only if the graph need not take them."""
    defaults: Mapping[str, Number]
    """The value of each optional request input in requests that lack it.

    An input in `axis_lengths` holds the size of its axis instead.
    """
    prepared: tuple[TensorSpec, ...]
    """Tensors that the model's own code computes from `inputs`; the graph then takes these."""
    outputs: tuple[TensorSpec, ...]
    """Outputs of the graph; like all specs here, without the batch dimension."""
    derived: tuple[TensorSpec, ...]
    """Outputs that the model's own code computes from the graph's outputs."""
    passthrough: Mapping[str, str]
    """The request input that each passthrough output returns; the graph need not have it."""
    axis_sizes: AxisSizes
    """The sizes that axes may have."""
    axis_lengths: Mapping[str, str]
    """By axis, the request input or prepared tensor with each row's true length along it."""
    masks: Mapping[str, tuple[str | Relation, ...]]
    """By graph input, the axes of the mask that is generated for it, or a sum with PAST."""
    lengths: Mapping[str, str]
    """By graph input, the axis whose row lengths are generated for it."""
    positions: Mapping[str, str]
    """By graph input, the axis along which positions are generated for it."""
    offsets: Mapping[str, str]
    """By graph input, the axis whose accumulated row lengths are generated for it."""
    constants: Mapping[str, tuple[str, ...]]
    """By graph input, the elements that it has in every execution, as text."""
    states: SequenceStates
    """The states kept from one request of a sequence to the next."""
    batch_axes: BatchAxes
    """The dim of each graph tensor that counts rows."""
    batch_inputs: tuple[BatchInput, ...]
    """The generated inputs that Triton's own `batch_input` declares."""
    marked_axes: frozenset[str]
    """The axes along which generated inputs, or packing, give the graph the ends of data."""
    padding: Mapping[str, PaddingRule]
    """By axis, the rule for different sizes along it within one execution."""
    ranges: Mapping[str, ValueRange]
    """By request input or prepared tensor, the values that its elements may have."""
    pads: Mapping[str, Number]
    """By request input or prepared tensor, the value of its padding, if that is not 0."""
    aipp: Mapping[str, Aipp]
    """By request input or prepared tensor, the conversion of its images."""
    jpeg: Mapping[str, JpegPicture]
    """By prepared tensor, the input with JPEG files from which it is decoded."""
    gears: Mapping[tuple[str, ...], GearSizes | int]
    """By axes, with ROWS for the rows, the gears, smallest first, or the number to derive."""
    oversize: str
    """"error" or "fallback": what happens to a request that fits no gear."""
    packing: str | None
    """The axis along which rows are joined instead of padded."""
    cost: GivenCost | None
    """The cost of an execution; None if it is to be measured."""
    cost_cache: str
    """The place of measured costs: "auto", "off", or a folder, relative to the version folder."""
    intra_op_threads: int
    adapts_threads: bool
    """True if small executions may use one thread: config.pbtxt gives no number."""
    devices: tuple[str, ...]
    """Devices of one kind, with an engine and executor each; a device may occur several times."""
    io_buffers: int
    """Buffer sets of each executor, whose copies and executions overlap."""
    service_share: ServiceShare | None
    """The model's share of the device service; None if it executes in its own process."""
    resident: Resident
    """Tensors that stay in the device service between models."""
    stages: tuple[str, ...]
    """The names of the graphs in order of execution; empty for a single artifact."""
    workspace_pool_bytes: int | None
    unplanned_memory: bool
    """True if a file with free shapes may be executed outside the memory plan."""
    time_limits: TimeLimits
    """Time limits of executions on a card."""
    torch_compiler: str
    """The compiler of the engine torch on a card: "ge" or "npugraph_ex"."""
    window: Window | None
    """The executions on a card to be profiled or dumped."""
    histogram: str | None
    """The file where request sizes are recorded, relative to the version folder and inside it."""
    warmup: str
    """"gears" or "none"."""
    early_answers: bool
    """True if an answer need not wait for the last execution of its request batch."""
    load_check: bool
    """True if a load ends with seeded requests that check the independence of answers."""
    int8: bool
    """True if the graphs are rewritten at load to INT8 with a scale per row."""
    unpad: bool
    """True if encoders are rewritten at load so that padding is not computed."""
    reproducible: bool
    """True if each request is executed at its own gear, so that its bits never change."""
    ge_options: Mapping[str, str]
    """The values of options of Ascend's compiler: of ATC_FLAGS, or for ge_session of GE_LEVELS."""
    atc_flags: Mapping[str, str]
    """The values of other flags of ATC, by flag without dashes. For `ge-runtime build`."""

    @property
    def sources(self) -> tuple[TensorSpec, ...]:
        """The tensors that batches consist of: the prepared tensors if there are any, or inputs."""
        return self.prepared or self.inputs

    @property
    def results(self) -> tuple[str, ...]:
        """The names of all results requested from the graph: outputs and next states."""
        outputs = (spec.name for spec in self.outputs)
        return tuple(dict.fromkeys((*outputs, *self.states.outputs.values())))

    @property
    def images(self) -> Mapping[str, DeclaredImages]:
        """The inputs or prepared tensors that are images."""
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
        """The kind of all devices: "cpu", "cuda" or "npu"."""
        return kind_of(self.devices[0])

    @property
    def places(self) -> tuple[EnginePlace, ...]:
        """The place of each engine of an instance; engines of one executor share its workspace."""
        return tuple(
            EnginePlace(device, self.devices[:index].count(device), buffers)
            for index, device in enumerate(self.devices)
            for buffers in range(self.io_buffers)
        )

    def with_resident_as_computed(self) -> RuntimeConfig:
        """Return the configuration with the graph's tensors in place of handles.

        For executing the model without its ensemble.
        """

        def own(spec: TensorSpec) -> TensorSpec:
            tensor = self.resident.tensors.get(spec.name)
            return spec if tensor is None else TensorSpec(spec.name, tensor.dtype, tensor.dims)

        return replace(
            self, inputs=tuple(map(own, self.inputs)), outputs=tuple(map(own, self.outputs))
        )

    @property
    def rows_key(self) -> str:
        """The key in config.pbtxt that limits the rows of an execution."""
        return "rows" if self.batched and not self.max_batch_size else "max_batch_size"

    @classmethod
    def parse(
        cls, model_config: Mapping[str, object], *, cores: int, derived: Collection[str] = ()
    ) -> RuntimeConfig:
        """Parse the model configuration that Triton gives to a model.

        Args:
            model_config: The parsed JSON.
            cores: Number of cores that this process may use, shared by the engines of all
                instances.
            derived: Names of the outputs that the model's own code computes.

        Raises:
            ConfigFault: The configuration is invalid. The fault has all errors.
        """
        errors = ConfigErrors(str(model_config.get("name", "")))
        config = _read(model_config, cores, derived, errors)
        errors.raise_any()
        return config


def _read(
    model_config: Mapping[str, object], cores: int, derived: Collection[str], errors: ConfigErrors
) -> RuntimeConfig:
    # In order of dependence: tensors have axes, axes limits, limits gears.
    model = str(model_config.get("name", ""))
    max_batch_size = read_max_batch_size(model_config, errors)
    parameters = table.read_parameters(model_config, errors)
    rows = read_rows(parameters, max_batch_size)
    batched = rows > 0
    tensors = ModelTensors.read(
        model_config,
        parameters,
        derived=derived,
        batched=batched,
        rows_first=batched and max_batch_size == 0,
    )
    devices = read_devices(parameters)
    engine = read_engine(parameters, devices)
    # Divided, as engines that all use all cores are a common cause of slow servers.
    share = cores // (read_instances(model_config, errors) * len(devices))
    axis_sizes = AxisSizes.read(parameters, tensors)
    limits = axis_sizes.limits
    axis_lengths = read_axis_lengths(parameters, tensors, limits)
    oversize = parameters.get(table.OVERSIZE)
    gears = read_gears(
        parameters,
        tensors,
        axis_sizes,
        rows=rows,
        fallback=oversize == "fallback",
        compiled=kind_of(devices[0]) == NPU,
    )
    geared = set(chain.from_iterable(gears))
    check_static_model(parameters, tensors.axes, geared, rows=rows)
    generated = GeneratedInputs(parameters, tensors, batched=batched)
    states = SequenceStates.read(
        model_config, parameters, tensors, generated, limits, max_batch_size=max_batch_size
    )
    batch_inputs = read_batch_inputs(model_config, tensors, limits, generated, errors, rows=rows)
    packing = read_packing(
        parameters, tensors, generated.masks, geared, axis_sizes.steps, batched=batched
    )
    batch_axes = BatchAxes.read(parameters, tensors, batched=batched, packing=packing)
    defaults, pads, ranges = read_values(
        parameters, tensors, axis_lengths.values(), rows=ROWS in geared
    )
    reproducible = parameters.get(table.REPRODUCIBLE)
    if reproducible:
        counting = (*generated.offsets, *counted_targets(batch_inputs))
        check_reproducible(parameters, gears, tensors.axes, counting, rows=rows)
    service_share = read_service_share(parameters)
    marked = generated.marked_axes | marked_axes(batch_inputs, tensors)
    marked |= {packing} if packing is not None else set()
    padding = read_padding_rules(
        parameters, tensors, limits, masked=marked, axis_lengths=axis_lengths, packing=packing
    )
    for field, _, _ in parameters.entries(table.GENERATE):
        expected = "'backend: \"ge\"', or a model.py with GenerationModel"
        errors.add(field, "a model.py with GraphModel", expected)
    check_growing_states(states, padding, devices, parameters, batched=max_batch_size > 0)
    return RuntimeConfig(
        model=model,
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
        masks=generated.masks,
        lengths=generated.lengths,
        positions=generated.positions,
        offsets=generated.offsets,
        constants=generated.constants,
        states=states,
        batch_axes=batch_axes,
        batch_inputs=batch_inputs,
        marked_axes=frozenset(marked),
        padding=padding,
        ranges=ranges,
        pads=pads,
        aipp=read_aipp(parameters, tensors, engine=engine),
        jpeg=read_jpeg(parameters, tensors, limits, max_batch_size=max_batch_size),
        gears=gears,
        oversize=oversize,
        packing=packing,
        cost=parameters.get(table.COST),
        cost_cache=parameters.get(table.COST_CACHE),
        intra_op_threads=parameters.get(table.THREADS) or max(1, share),
        adapts_threads=parameters.text(table.THREADS) is None,
        devices=devices,
        io_buffers=read_io_buffers(parameters, devices, engine=engine),
        service_share=service_share,
        resident=Resident.read(
            parameters, tensors, service_share, model=model, max_batch_size=max_batch_size
        ),
        stages=parameters.get(table.STAGES),
        workspace_pool_bytes=read_pool_bytes(parameters, engine=engine),
        unplanned_memory=read_unplanned(parameters, devices, engine=engine),
        time_limits=read_time_limits(parameters, devices, engine=engine),
        torch_compiler=read_torch_compiler(parameters, devices, engine=engine),
        window=read_window(parameters, devices, engine=engine),
        histogram=parameters.get(table.HISTOGRAM),
        warmup=parameters.get(table.WARMUP),
        early_answers=parameters.get(table.EARLY_ANSWERS),
        load_check=parameters.get(table.LOAD_CHECK),
        int8=parameters.get(table.INT8),
        unpad=parameters.get(table.UNPAD),
        reproducible=reproducible,
        ge_options=read_ge_options(parameters, devices, engine=engine),
        atc_flags=read_atc_flags(parameters, devices, engine=engine),
    )
