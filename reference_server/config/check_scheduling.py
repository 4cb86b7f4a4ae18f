"""The rules for the three schedulers that a configuration can choose, with Triton's error texts."""

from __future__ import annotations

from tritonclient.grpc.model_config_pb2 import DataType as DataTypeProto
from tritonclient.grpc.model_config_pb2 import ModelConfig as ConfigProto
from tritonclient.grpc.model_config_pb2 import (
    ModelDynamicBatching,
    ModelQueuePolicy,
    ModelSequenceBatching,
)

from reference_server.config.rule import Faults, rule
from reference_server.config.scheduler_settings import FALSE_TRUE
from reference_server.core.errors import ServerError, invalid_arg

_CORRELATION = ModelSequenceBatching.Control.CONTROL_SEQUENCE_CORRID
#: In the order in which Triton checks them.
_KINDS = (
    ModelSequenceBatching.Control.CONTROL_SEQUENCE_START,
    ModelSequenceBatching.Control.CONTROL_SEQUENCE_END,
    ModelSequenceBatching.Control.CONTROL_SEQUENCE_READY,
    _CORRELATION,
)
_CORRELATION_TYPES = ("TYPE_UINT64", "TYPE_INT64", "TYPE_UINT32", "TYPE_INT32", "TYPE_STRING")


@rule
def check_dynamic_batching(config: ConfigProto) -> Faults:
    """Check `dynamic_batching`."""
    batching = config.dynamic_batching
    for size in batching.preferred_batch_size:
        if size <= 0:
            yield invalid_arg(f"dynamic batching preferred size must be positive for {config.name}")
        if size > config.max_batch_size:
            yield invalid_arg(
                f"dynamic batching preferred size must be <= max batch size for {config.name}"
            )
    if batching.priority_levels:
        yield from _check_levels(batching, config.name)
    if batching.preserve_ordering:
        yield from _check_ordering(batching, config.name)


def _check_levels(batching: ModelDynamicBatching, model: str) -> Faults:
    levels = batching.priority_levels
    if not 1 <= batching.default_priority_level <= levels:
        yield invalid_arg(f"default priority level must be in range [1, {levels}] for {model}")
    for level in batching.priority_queue_policy:
        if not 1 <= level <= levels:
            yield invalid_arg(
                f"priority queue policy must have priority level in range [1, {levels}] for {model}"
            )


def _check_ordering(batching: ModelDynamicBatching, model: str) -> Faults:
    if batching.priority_levels > 1:
        yield invalid_arg(
            f"Only one priority level is allowed when 'preserve_ordering' is true for {model}"
        )
    for policy in (batching.default_queue_policy, *batching.priority_queue_policy.values()):
        delays = policy.timeout_action == ModelQueuePolicy.DELAY
        if delays and policy.default_timeout_microseconds:
            yield invalid_arg(
                "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is "
                f"true for {model}"
            )


@rule
def check_ensemble(config: ConfigProto) -> Faults:
    """Check an ensemble's configuration without the configurations of its models."""
    name = config.name
    if config.backend:
        yield invalid_arg(
            f"Ensemble model '{name}' must have platform type 'ensemble' and empty backend type"
        )
    if not config.HasField("ensemble_scheduling"):
        yield invalid_arg(
            f"ensemble scheduling must be set for ensemble {name} whose platform is ensemble"
        )
        return
    for field, words in (("optimization", "optimization"), ("instance_group", "instance group")):
        if field in (found.name for found, _ in config.ListFields()):
            yield invalid_arg(f"{words} should not be specified for ensemble '{name}'")
    if config.model_warmup:
        yield invalid_arg(f"model_warmup can not be specified for ensemble '{name}'")
    steps = config.ensemble_scheduling.step
    if not steps:
        yield invalid_arg(f"must specify 'step' for ensemble '{name}'")
        return
    faults = list(_check_steps(config))
    yield from faults
    if not faults:  # otherwise missing connections would be consequences of these faults
        yield from _check_connected(config)


def _check_steps(config: ConfigProto) -> Faults:
    name = config.name
    steps = config.ensemble_scheduling.step
    read: set[str] = set()
    written = {entry.name for entry in config.input}
    for index, step in enumerate(steps):
        for field in ("model_name", "input_map", "output_map"):
            if not getattr(step, field):
                yield invalid_arg(f"must specify '{field}' in step {index} of ensemble '{name}'")
        read.update(step.input_map.values())
        for tensor in step.output_map.values():
            if tensor in written:
                yield invalid_arg(
                    f"ensemble tensor '{tensor}' can appear in an output map only once "
                    f"for ensemble '{name}' step {index}"
                )
            written.add(tensor)
    for kind, entries, known in (("input", config.input, read), ("output", config.output, written)):
        for entry in entries:
            if entry.name not in known:
                yield invalid_arg(
                    f"ensemble {kind} '{entry.name}' for ensemble {name}' is not used"
                )


def _check_connected(config: ConfigProto) -> Faults:
    """Check that every output depends on the ensemble's inputs only, and no tensor is unused."""
    connected = {entry.name for entry in config.input}
    steps = config.ensemble_scheduling.step
    waiting = list(steps)
    while ready := [step for step in waiting if connected.issuperset(step.input_map.values())]:
        connected.update(tensor for step in ready for tensor in step.output_map.values())
        waiting = [step for step in waiting if step not in ready]
    unwritten = False
    for entry in config.output:
        for step in waiting:
            if entry.name in step.output_map.values():
                unwritten = True
                missing = min(set(step.input_map.values()) - connected)
                yield invalid_arg(
                    f"output '{entry.name}' for ensemble '{config.name}' is not written: at least "
                    f"one of its depending tensors, '{missing}', is not connected"
                )
    if unwritten:  # the missing tensors would be reported again as unused
        return
    read = {tensor for step in steps for tensor in step.input_map.values()}
    written = {tensor for step in steps for tensor in step.output_map.values()}
    unused = written - read - {entry.name for entry in config.output}
    for tensor in sorted(unused | ((read | written) - connected)):
        yield invalid_arg(f"ensemble tensor '{tensor}' is unused in ensemble '{config.name}'")


@rule
def check_sequence_batching(config: ConfigProto) -> Faults:
    """Check `sequence_batching` before the model completes the configuration."""
    batching = config.sequence_batching
    name = config.name
    yield from _check_controls(config)
    if batching.HasField("direct"):
        utilization = batching.direct.minimum_slot_utilization
        if not 0 <= utilization <= 1:  # zero is the default
            yield invalid_arg(
                f"sequence batching minimum slot utilization must be in range (0.0, 1.0] for {name}"
            )
    for size in batching.oldest.preferred_batch_size:
        if size <= 0:
            yield invalid_arg(f"sequence batching preferred batch size must be positive for {name}")
        if size > config.max_batch_size:
            yield invalid_arg(
                f"sequence batching preferred batch size must be <= max batch size for {name}"
            )


def _check_controls(config: ConfigProto) -> Faults:
    """Check controls kind by kind, so that the first error is the one that Triton reports."""
    for kind in _KINDS:
        yield from _check_kind(config, kind)
    for entry in config.sequence_batching.control_input:
        for control in entry.control:
            if control.kind == _CORRELATION:
                yield from _check_correlation_type(control, config.name)


def _check_kind(config: ConfigProto, kind: ModelSequenceBatching.Control.Kind) -> Faults:
    model = config.name
    named = ModelSequenceBatching.Control.Kind.Name(kind)
    seen = False
    names: set[str] = set()
    for entry in config.sequence_batching.control_input:
        if not entry.name:
            yield invalid_arg(f"sequence batching control tensor must have a name for {model}")
        if entry.name in names:
            yield _for_several_kinds(entry, model)
        names.add(entry.name)
        for control in entry.control:
            if control.kind != kind:
                continue
            if seen:
                yield invalid_arg(
                    f"sequence batching specifies multiple {named} tensors for {model}"
                )
            seen = True
            yield from _check_values(control, named, model)


def _for_several_kinds(entry: ModelSequenceBatching.ControlInput, model: str) -> ServerError:
    return invalid_arg(
        f"sequence batching control tensor '{entry.name}' is specified for multiple control kinds "
        f"for {model}"
    )


def _check_values(control: ModelSequenceBatching.Control, kind: str, model: str) -> Faults:
    given = [field for field in FALSE_TRUE if getattr(control, field)]
    if control.kind == _CORRELATION:
        if given:
            yield invalid_arg(
                "sequence batching must not specify either 'int32_false_true', 'fp32_false_true' "
                f"or 'bool_false_true' for {kind} for {model}"
            )
        return
    if not given:
        yield invalid_arg(
            "sequence batching must specify either 'int32_false_true', 'fp32_false_true' or "
            f"'bool_false_true' for {kind} for {model}"
        )
    elif len(given) > 1:
        yield invalid_arg(
            "sequence batching specifies more than one from 'int32_false_true', "
            f"'fp32_false_true' and 'bool_false_true' for {kind} for {model}"
        )
    elif len(getattr(control, given[0])) != 2:
        yield invalid_arg(
            f"sequence batching control '{given[0]}' must have exactly 2 entries for {kind} "
            f"for {model}"
        )


def _check_correlation_type(control: ModelSequenceBatching.Control, model: str) -> Faults:
    if DataTypeProto.Name(control.data_type) not in _CORRELATION_TYPES:
        yield invalid_arg(
            f"unexpected data type for control CONTROL_SEQUENCE_CORRID for {model}. Allowed data "
            "types are TYPE_UINT64, TYPE_INT64, TYPE_UINT32, TYPE_INT32 and TYPE_STRING"
        )


@rule
def check_sequence_inputs(config: ConfigProto) -> Faults:
    """Check the inputs that the sequence batcher adds, after the model completed its config.

    Some of these configurations are loaded by Triton, which then reads or overwrites the wrong
    memory.
    """
    batching = config.sequence_batching
    taken = {entry.name for entry in config.input}
    for control in batching.control_input:
        if len(control.control) > 1:
            yield _for_several_kinds(control, config.name)
        if control.control:
            yield from _take(control.name, taken, config.name)
    inputs: set[str] = set()
    outputs: set[str] = set()
    for state in batching.state:
        yield from _check_initial_state(state)
        for field in ("input_name", "output_name", "data_type", "dims"):
            if not getattr(state, field):
                yield invalid_arg(f"sequence state must specify '{field}' for {config.name}")
        for kind, name, names in (
            ("input", state.input_name, inputs),
            ("output", state.output_name, outputs),
        ):
            if name in names:
                yield invalid_arg(f"State {kind} name '{name}' specified more than once.")
            names.add(name)
        yield from _take(state.input_name, taken, config.name)
        if any(dim < 1 and dim != -1 for dim in state.dims):
            yield invalid_arg(
                f"sequence state '{state.input_name}' dimension must be integer >= 1, or -1 to "
                f"indicate a variable-size dimension for {config.name}"
            )


def _take(name: str, taken: set[str], model: str) -> Faults:
    if name in taken:
        yield invalid_arg(
            f"sequence batching adds an input '{name}' that model {model} has already"
        )
    taken.add(name)


def _check_initial_state(state: ModelSequenceBatching.State) -> Faults:
    count = len(state.initial_state)
    if count > 1:
        yield invalid_arg(
            f"initial_state field for state input '{state.input_name}' must contain exactly one or "
            f"zero element. Found '{count}' elements."
        )
    for initial in state.initial_state:
        if initial.data_type != state.data_type:
            yield invalid_arg(
                f"The data type used for 'initial_state' field of state '{state.input_name}' does "
                "not match the state data type."
            )
        if not initial.name:
            yield invalid_arg(
                "Field 'name' must be set when using initial_state for state input "
                f"'{state.input_name}'."
            )
        if len(initial.dims) != len(state.dims):
            yield invalid_arg(
                f"'initial_state' field for state input name '{state.input_name}' must have as "
                "many dims as the state."
            )
            continue
        for size, dim in zip(initial.dims, state.dims, strict=True):
            if size < 1:
                yield invalid_arg(
                    f"'initial_state' field for state input name '{state.input_name}' contains "
                    "variable dimensions."
                )
            if dim not in (-1, size):
                yield invalid_arg(
                    f"'initial_state' dim for input name '{state.input_name}' doesn't match "
                    f"'state' dim description. {size} != {dim}"
                )
        if initial.WhichOneof("state_data") is None:
            yield invalid_arg(
                f"initial_state setting expects state'{state.input_name}' to have state_data set"
            )
