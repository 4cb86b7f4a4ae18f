"""The rules for the three schedulers that a configuration can choose, with Triton's error texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tritonclient.grpc.model_config_pb2 import DataType as DataTypeProto
from tritonclient.grpc.model_config_pb2 import ModelConfig as ConfigProto
from tritonclient.grpc.model_config_pb2 import (
    ModelDynamicBatching,
    ModelQueuePolicy,
    ModelSequenceBatching,
)

from reference_server.config.rule import Faults, rule, under
from reference_server.config.scheduler_settings import FALSE_TRUE
from reference_server.core.errors import FieldPath, ServerError, invalid_arg

_CORRELATION = ModelSequenceBatching.Control.CONTROL_SEQUENCE_CORRID
#: The control kinds, in the order of Triton's checks.
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
    sizes = _check_sizes("dynamic batching preferred", batching.preferred_batch_size, config)
    yield from under(("dynamic_batching", "preferred_batch_size"), sizes)
    if batching.priority_levels:
        yield from under(("dynamic_batching",), _check_levels(batching, config.name))
    if batching.preserve_ordering:
        yield from under(("dynamic_batching",), _check_ordering(batching, config.name))


def _check_sizes(what: str, sizes: Sequence[int], config: ConfigProto) -> Faults:
    for index, size in enumerate(sizes):
        if size <= 0:
            yield invalid_arg(f"{what} size must be positive for {config.name}", index)
        if size > config.max_batch_size:
            yield invalid_arg(f"{what} size must be <= max batch size for {config.name}", index)


def _check_levels(batching: ModelDynamicBatching, model: str) -> Faults:
    levels = batching.priority_levels
    if not 1 <= batching.default_priority_level <= levels:
        yield invalid_arg(
            f"default priority level must be in range [1, {levels}] for {model}",
            "default_priority_level",
        )
    for level in batching.priority_queue_policy:
        if not 1 <= level <= levels:
            yield invalid_arg(
                "priority queue policy must have priority level in range "
                f"[1, {levels}] for {model}",
                *("priority_queue_policy", level),
            )


def _check_ordering(batching: ModelDynamicBatching, model: str) -> Faults:
    if batching.priority_levels > 1:
        yield invalid_arg(
            f"Only one priority level is allowed when 'preserve_ordering' is true for {model}",
            "priority_levels",
        )
    policies = batching.priority_queue_policy.items()
    for place, policy in (
        (("default_queue_policy",), batching.default_queue_policy),
        *((("priority_queue_policy", level), policy) for level, policy in policies),
    ):
        delays = policy.timeout_action == ModelQueuePolicy.DELAY
        if delays and policy.default_timeout_microseconds:
            yield invalid_arg(
                "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is "
                f"true for {model}",
                *place,
            )


@rule
def check_ensemble(config: ConfigProto) -> Faults:
    """Check an ensemble's configuration without the configurations of its models."""
    name = config.name
    if config.backend:
        yield invalid_arg(
            f"Ensemble model '{name}' must have platform type 'ensemble' and empty backend type",
            "backend",
        )
    if not config.HasField("ensemble_scheduling"):
        yield invalid_arg(
            f"ensemble scheduling must be set for ensemble {name} whose platform is ensemble",
            "platform",
        )
        return
    for field, words in (("optimization", "optimization"), ("instance_group", "instance group")):
        if field in (found.name for found, _ in config.ListFields()):
            yield invalid_arg(f"{words} should not be specified for ensemble '{name}'", field)
    if config.model_warmup:
        yield invalid_arg(
            f"model_warmup can not be specified for ensemble '{name}'", "model_warmup"
        )
    steps = config.ensemble_scheduling.step
    if not steps:
        yield invalid_arg(f"must specify 'step' for ensemble '{name}'", "ensemble_scheduling")
        return
    faults = list(_check_steps(config))
    yield from faults
    if not faults:  # otherwise missing connections would be consequences of these faults
        faults = list(_check_outputs(config))
        yield from faults
    if not faults:
        yield from _check_unused(config)


def _check_steps(config: ConfigProto) -> Faults:
    name = config.name
    read: set[str] = set()
    written = {entry.name for entry in config.input}
    for index, step in enumerate(config.ensemble_scheduling.step):
        place = ("ensemble_scheduling", "step", index)
        for field in ("model_name", "input_map", "output_map"):
            if not getattr(step, field):
                yield invalid_arg(
                    f"must specify '{field}' in step {index} of ensemble '{name}'", *place, field
                )
        read.update(step.input_map.values())
        for mapped, tensor in step.output_map.items():
            if tensor in written:
                yield invalid_arg(
                    f"ensemble tensor '{tensor}' can appear in an output map only once "
                    f"for ensemble '{name}' step {index}",
                    *(*place, "output_map", mapped),
                )
            written.add(tensor)
    for index, entry in enumerate(config.input):
        if entry.name not in read:
            yield _unused("input", index, config)


def _unused(kind: str, index: int, config: ConfigProto) -> ServerError:
    entry = getattr(config, kind)[index]
    text = f"ensemble {kind} '{entry.name}' for ensemble {config.name}' is not used"
    return invalid_arg(text, kind, index)


def _check_outputs(config: ConfigProto) -> Faults:
    """Check that every output depends on the ensemble's inputs only."""
    #: For each written tensor: the tensors that its step reads.
    sources: dict[str, list[str]] = {}
    for step in config.ensemble_scheduling.step:
        tensors = [step.input_map[name] for name in sorted(step.input_map)]
        sources |= dict.fromkeys(step.output_map.values(), tensors)
    connected = _connected(config)
    known = connected | sources.keys() | {name for read in sources.values() for name in read}
    for index, entry in enumerate(config.output):
        if entry.name not in known:
            yield _unused("output", index, config)
        elif entry.name not in connected:
            text = f"output '{entry.name}' for ensemble '{config.name}' is not written"
            missing = _unconnected(entry.name, sources, connected)
            if missing == entry.name:
                yield invalid_arg(text, "output", index)
            else:
                text += f": at least one of its depending tensors, '{missing}', is not connected"
                yield invalid_arg(text, *_place_of(missing, config))


def _connected(config: ConfigProto) -> set[str]:
    """Return the tensors that depend on the ensemble's inputs only."""
    connected = {entry.name for entry in config.input}
    waiting = list(config.ensemble_scheduling.step)
    while ready := [step for step in waiting if connected.issuperset(step.input_map.values())]:
        connected.update(tensor for step in ready for tensor in step.output_map.values())
        waiting = [step for step in waiting if step not in ready]
    return connected


def _unconnected(name: str, sources: Mapping[str, Sequence[str]], connected: set[str]) -> str:
    """Return the tensor that Triton names as the reason why the tensor `name` has no value.

    From each tensor Triton goes to an unconnected tensor that the tensor's step reads, until all of
    these have been visited. If a step reads several, Triton takes any of them, because maps have no
    order. This function takes the first by the name of the step's input.
    """
    seen: set[str] = set()
    while True:
        before = (each for each in sources.get(name, ()) if each not in connected | seen)
        found = next(before, None)
        if found is None:
            return name
        seen.add(found)
        name = found


def _check_unused(config: ConfigProto) -> Faults:
    """Check that every tensor is read, or is an output."""
    steps = config.ensemble_scheduling.step
    read = {tensor for step in steps for tensor in step.input_map.values()}
    written = {tensor for step in steps for tensor in step.output_map.values()}
    unused = written - read - {entry.name for entry in config.output}
    for tensor in sorted(unused | ((read | written) - _connected(config))):
        yield invalid_arg(
            f"ensemble tensor '{tensor}' is unused in ensemble '{config.name}'",
            *_place_of(tensor, config),
        )


def _place_of(tensor: str, config: ConfigProto) -> FieldPath:
    """Return the path of the first map entry in a step that names `tensor`."""
    return next(
        ("ensemble_scheduling", "step", index, field, mapped)
        for field in ("input_map", "output_map")
        for index, step in enumerate(config.ensemble_scheduling.step)
        for mapped, name in getattr(step, field).items()
        if name == tensor
    )


@rule
def check_sequence_batching(config: ConfigProto) -> Faults:
    """Check `sequence_batching` before the model completes the configuration."""
    yield from under(("sequence_batching",), _sequence_faults(config))


def _sequence_faults(config: ConfigProto) -> Faults:
    batching = config.sequence_batching
    name = config.name
    yield from _check_controls(config)
    if batching.HasField("direct"):
        utilization = batching.direct.minimum_slot_utilization
        if not 0 <= utilization <= 1:  # zero is the default
            yield invalid_arg(
                "sequence batching minimum slot utilization must be in range (0.0, 1.0] "
                f"for {name}",
                *("direct", "minimum_slot_utilization"),
            )
    preferred = batching.oldest.preferred_batch_size
    sizes = _check_sizes("sequence batching preferred batch", preferred, config)
    yield from under(("oldest", "preferred_batch_size"), sizes)


def _check_controls(config: ConfigProto) -> Faults:
    """Check controls kind by kind, so that the first error is the one that Triton reports."""
    for kind in _KINDS:
        yield from _check_kind(config, kind)
    for index, entry in enumerate(config.sequence_batching.control_input):
        for number, control in enumerate(entry.control):
            if control.kind == _CORRELATION:
                place = ("control_input", index, "control", number)
                yield from under(place, _check_correlation_type(control, config.name))


def _check_kind(config: ConfigProto, kind: ModelSequenceBatching.Control.Kind) -> Faults:
    model = config.name
    named = ModelSequenceBatching.Control.Kind.Name(kind)
    seen = False
    names: set[str] = set()
    for index, entry in enumerate(config.sequence_batching.control_input):
        if not entry.name:
            yield invalid_arg(
                f"sequence batching control tensor must have a name for {model}",
                *("control_input", index, "name"),
            )
        if entry.name in names:
            yield _for_several_kinds(entry, model, "control_input", index, "name")
        names.add(entry.name)
        for number, control in enumerate(entry.control):
            place = ("control_input", index, "control", number)
            if control.kind != kind:
                continue
            if seen:
                yield invalid_arg(
                    f"sequence batching specifies multiple {named} tensors for {model}",
                    *(*place, "kind"),
                )
            seen = True
            yield from under(place, _check_values(control, named, model))


def _for_several_kinds(
    entry: ModelSequenceBatching.ControlInput, model: str, *path: str | int
) -> ServerError:
    return invalid_arg(
        f"sequence batching control tensor '{entry.name}' is specified for multiple control kinds "
        f"for {model}",
        *path,
    )


def _check_values(control: ModelSequenceBatching.Control, kind: str, model: str) -> Faults:
    given = [field for field in FALSE_TRUE if getattr(control, field)]
    if control.kind == _CORRELATION:
        if given:
            yield invalid_arg(
                "sequence batching must not specify either 'int32_false_true', 'fp32_false_true' "
                f"or 'bool_false_true' for {kind} for {model}",
                given[0],
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
            f"'fp32_false_true' and 'bool_false_true' for {kind} for {model}",
            given[1],
        )
    elif len(getattr(control, given[0])) != 2:
        yield invalid_arg(
            f"sequence batching control '{given[0]}' must have exactly 2 entries for {kind} "
            f"for {model}",
            given[0],
        )


def _check_correlation_type(control: ModelSequenceBatching.Control, model: str) -> Faults:
    if DataTypeProto.Name(control.data_type) not in _CORRELATION_TYPES:
        yield invalid_arg(
            f"unexpected data type for control CONTROL_SEQUENCE_CORRID for {model}. Allowed data "
            "types are TYPE_UINT64, TYPE_INT64, TYPE_UINT32, TYPE_INT32 and TYPE_STRING",
            "data_type",
        )


@rule
def check_sequence_inputs(config: ConfigProto) -> Faults:
    """Check the inputs that the sequence batcher adds, after completion by the model.

    Triton loads some of the configurations that are refused here, and then reads or overwrites the
    wrong memory.
    """
    yield from under(("sequence_batching",), _sequence_input_faults(config))


def _sequence_input_faults(config: ConfigProto) -> Faults:
    batching = config.sequence_batching
    taken = {entry.name for entry in config.input}
    for index, control in enumerate(batching.control_input):
        if len(control.control) > 1:
            yield _for_several_kinds(control, config.name, "control_input", index, "control", 1)
        if control.control:
            added = _take(control.name, taken, config.name)
            yield from under(("control_input", index, "name"), added)
    inputs: set[str] = set()
    outputs: set[str] = set()
    for index, state in enumerate(batching.state):
        place = ("state", index)
        yield from under((*place, "initial_state"), _check_initial_state(state))
        for field in ("input_name", "output_name", "data_type", "dims"):
            if not getattr(state, field):
                yield invalid_arg(
                    f"sequence state must specify '{field}' for {config.name}", *place, field
                )
        for kind, name, names in (
            ("input", state.input_name, inputs),
            ("output", state.output_name, outputs),
        ):
            if name in names:
                yield invalid_arg(
                    f"State {kind} name '{name}' specified more than once.",
                    *(*place, f"{kind}_name"),
                )
            names.add(name)
        added = _take(state.input_name, taken, config.name)
        yield from under((*place, "input_name"), added)
        if any(dim < 1 and dim != -1 for dim in state.dims):
            yield invalid_arg(
                f"sequence state '{state.input_name}' dimension must be integer >= 1, or -1 to "
                f"indicate a variable-size dimension for {config.name}",
                *(*place, "dims"),
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
            f"zero element. Found '{count}' elements.",
            1,
        )
    for index, initial in enumerate(state.initial_state):
        if initial.data_type != state.data_type:
            yield invalid_arg(
                f"The data type used for 'initial_state' field of state '{state.input_name}' does "
                "not match the state data type.",
                *(index, "data_type"),
            )
        if not initial.name:
            yield invalid_arg(
                "Field 'name' must be set when using initial_state for state input "
                f"'{state.input_name}'.",
                *(index, "name"),
            )
        if len(initial.dims) != len(state.dims):
            yield invalid_arg(
                f"'initial_state' field for state input name '{state.input_name}' must have as "
                "many dims as the state.",
                *(index, "dims"),
            )
            continue
        for size, dim in zip(initial.dims, state.dims, strict=True):
            if size < 0:
                yield invalid_arg(
                    f"'initial_state' field for state input name '{state.input_name}' contains "
                    "variable dimensions.",
                    *(index, "dims"),
                )
            if dim not in (-1, size):
                yield invalid_arg(
                    f"'initial_state' dim for input name '{state.input_name}' doesn't match "
                    f"'state' dim description. {size} != {dim}",
                    *(index, "dims"),
                )
        if initial.WhichOneof("state_data") is None:
            yield invalid_arg(
                f"initial_state setting expects state'{state.input_name}' to have state_data set",
                index,
            )
