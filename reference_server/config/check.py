"""The rules that a completed configuration must meet, with Triton's error texts.

Each rule is a generator of errors (`config/rule.py`).

Triton checks a configuration when it reads the repository (`check_polled`), and when it loads the
model: before the model's own auto-completion (`check_given`) and after it (`check_loaded`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from math import prod

from google.protobuf.message import Message
from tritonclient.grpc.model_config_pb2 import (
    BatchInput,
    BatchOutput,
    DataType,
    ModelInput,
    ModelInstanceGroup,
    ModelOutput,
)
from tritonclient.grpc.model_config_pb2 import ModelConfig as ConfigProto

from reference_server.config.check_scheduling import (
    check_dynamic_batching,
    check_ensemble,
    check_sequence_batching,
    check_sequence_inputs,
)
from reference_server.config.complete import check_platform
from reference_server.config.pbtxt import datatype
from reference_server.config.rule import Faults, rule, under
from reference_server.core.errors import NotHere, ServerError, internal, invalid_arg, unsupported
from reference_server.core.profiles import V2_51, TritonProfile
from reference_server.core.telemetry import is_label_name

_IMAGES = (ModelInput.FORMAT_NHWC, ModelInput.FORMAT_NCHW)
_MAX_INT64 = 2**63 - 1
#: Limits of one model that no real model reaches. Triton has no such limits.
_MOST_INSTANCES, _MOST_WARMUPS = 4096, 1_000_000
_MOST_SEQUENCES, _MOST_ELEMENTS = 1_000_000, 1 << 28
_ON_CPU = "write `kind: KIND_CPU`; `reference-server try DIR` does it in a copy"
_INPUTS_ON_CPU = "FORCE_CPU_ONLY_INPUT_TENSORS"


@rule
def check_polled(config: ConfigProto, profile: TritonProfile = V2_51) -> Faults:
    """Check the configuration alone, before any code of the model runs."""
    name = config.name
    has_backend = bool(config.backend or config.platform or config.default_model_filename)
    for index, agent in enumerate(config.model_repository_agents.agents):
        yield NotHere(
            f"unable to find 'libtritonrepoagent_{agent.name}.so' for repo agent '{agent.name}', "
            "searched: /opt/tritonserver/repoagents",
            *("model_repository_agents", "agents", index),
        )
    if not has_backend:
        yield invalid_arg(
            f"Invalid model name: Could not determine backend for model '{name}' with no backend "
            "in model configuration. Expected model name of the form 'model.<backend_name>'."
        )
    if config.HasField("model_metrics") and not profile.newer_config_fields:
        yield _newer("model_metrics", config)
    yield from under(("model_metrics", "metric_control"), _check_metrics(config))
    if config.ensemble_scheduling.max_inflight_requests and not profile.newer_config_fields:
        yield _newer("ensemble_scheduling.max_inflight_requests", config)
    if config.max_batch_size < 0:
        yield invalid_arg(
            f"'max_batch_size' must be non-negative value for {name}", "max_batch_size"
        )
    sequences = _check_enums(config.sequence_batching, f"sequence_batching of model {name}")
    unknown = list(under(("sequence_batching",), sequences))
    yield from unknown
    yield from check_dynamic_batching.faults(config)
    if config.platform == "ensemble":
        yield from check_ensemble.faults(config)
    elif config.HasField("ensemble_scheduling"):
        yield invalid_arg(
            f"ensemble scheduling cannot be set for model '{name}' whose platform is not ensemble",
            "ensemble_scheduling",
        )
    elif has_backend:
        yield from check_platform.faults(config)
    yield from check_response_cache.faults(config)
    if not unknown:
        yield from check_sequence_batching.faults(config)
    yield from _check_amounts(config)


def _check_amounts(config: ConfigProto) -> Faults:
    """Check for amounts that would exhaust the machine while the model is loaded."""
    instances = sum(group.count for group in config.instance_group)
    executions = sum(sample.count for sample in config.model_warmup)
    for field, found, most in (
        ("instance_group", instances, _MOST_INSTANCES),
        ("model_warmup", executions, _MOST_WARMUPS),
    ):
        if found > most:
            yield invalid_arg(
                f"model '{config.name}': found a total count of {found} in '{field}'; expected "
                f"at most {most}",
                field,
            )
    batching = config.sequence_batching
    sequences = max(instances, 1) * config.max_batch_size
    if batching.HasField("oldest"):
        sequences = batching.oldest.max_candidate_sequences
    if config.HasField("sequence_batching") and sequences > _MOST_SEQUENCES:
        yield invalid_arg(
            f"model '{config.name}': found 'sequence_batching' of {sequences} sequences at a time; "
            f"expected at most {_MOST_SEQUENCES}",
            "sequence_batching",
        )
    for index, sample in enumerate(config.model_warmup):
        for name, given in sample.inputs.items():
            elements = max(sample.batch_size, 1) * prod(given.dims)
            if elements > _MOST_ELEMENTS:
                yield invalid_arg(
                    f"model '{config.name}': found {elements} elements for input '{name}' of "
                    f"warm-up '{sample.name}'; expected at most {_MOST_ELEMENTS}",
                    *("model_warmup", index),
                )


def _newer(field: str, config: ConfigProto) -> ServerError:
    return invalid_arg(
        f"model {config.name}: found field {field}; expected fields of Triton 2.51. Start the "
        "server with --triton-version=newest to use it.",
        *field.split("."),
    )


def _check_metrics(config: ConfigProto) -> Faults:
    """Check custom buckets for missing fields.

    As in Triton, the texts do not name the model. The order of the buckets is not checked here.
    """
    for index, control in enumerate(config.model_metrics.metric_control):
        if not control.HasField("metric_identifier"):
            yield invalid_arg("metric control must specify 'metric_identifier'", index)
        elif not control.metric_identifier.family:
            yield invalid_arg(
                "metric identifier must specify non-empty 'family'",
                *(index, "metric_identifier", "family"),
            )
        if not control.HasField("histogram_options"):
            yield invalid_arg("metric control must specify 'histogram_options'", index)
        elif not control.histogram_options.buckets:
            yield invalid_arg(
                "histogram options must specify non-empty 'buckets'",
                *(index, "histogram_options", "buckets"),
            )


@rule
def check_directory(config: ConfigProto, directory_name: str) -> Faults:
    """Check that the model has the name of its directory. Triton checks this last."""
    if config.name != directory_name:
        yield invalid_arg(
            f"unexpected directory name '{directory_name}' for model '{config.name}', "
            "directory name must equal model name",
            "name",
        )


@rule
def check_tensors(config: ConfigProto, profile: TritonProfile = V2_51) -> Faults:
    """Check the declarations of inputs, outputs, and batch inputs and outputs."""
    for index, given in enumerate(config.input):
        yield from under(("input", index), _check_tensor("input", given, config, profile))
    for index, wanted in enumerate(config.output):
        yield from under(("output", index), _check_tensor("output", wanted, config, profile))
    yield from _check_batch_tensors(config)


@rule
def check_given(config: ConfigProto) -> Faults:
    """Check what auto-completion by the model cannot repair."""
    if config.platform == "ensemble":
        return
    yield from _check_groups(config)
    for index, entry in enumerate(config.batch_input):
        if entry.data_type == DataType.TYPE_INVALID:
            yield invalid_arg(
                "unexpected batch input data type 'TYPE_INVALID'",
                *("batch_input", index, "data_type"),
            )
    if _INPUTS_ON_CPU in config.parameters:
        value = config.parameters[_INPUTS_ON_CPU].string_value
        if value not in ("yes", "no"):  # both have the same effect here
            yield unsupported(
                f"Incorrect value for {_INPUTS_ON_CPU}: {value}'",
                *("parameters", _INPUTS_ON_CPU, "value", "string_value"),
            )


@rule
def check_loaded(config: ConfigProto, profile: TritonProfile = V2_51) -> Faults:
    """Check the configuration after the model completed it."""
    yield from check_tensors.faults(config, profile)
    for tag in config.metric_tags:
        # Triton's metrics have the tag with an underscore in front. Triton exits on other names.
        if not is_label_name(f"_{tag}"):
            yield invalid_arg(
                f"metric tag '{tag}' of model {config.name} must consist of letters, digits and "
                "underscores, and not begin with an underscore",
                *("metric_tags", tag),
            )
    if config.platform != "ensemble":
        yield from check_sequence_inputs.faults(config)


def _check_tensor(
    kind: str, entry: ModelInput | ModelOutput, config: ConfigProto, profile: TritonProfile
) -> Faults:
    model = config.name
    if not entry.name:
        yield invalid_arg(f"model {kind} must specify 'name' for {model}", "name")
    if datatype(entry.data_type) is None:
        yield invalid_arg(
            f"model {kind} '{entry.name}' must specify 'data_type' for {model}", "data_type"
        )
    if not entry.dims:
        yield invalid_arg(f"model {kind} '{entry.name}' must specify 'dims' for {model}", "dims")
    is_scalar = entry.HasField("reshape") and not entry.reshape.shape and config.max_batch_size == 0
    if is_scalar:
        yield invalid_arg(
            f"model {kind} '{entry.name}' cannot have empty reshape for non-batching model as "
            f"scalar tensors are not supported for {model}",
            "reshape",
        )
    dimension = f"model {kind} '{entry.name}' dimension"
    yield from under(("dims",), _check_dims(dimension, entry.dims, model))
    if entry.HasField("reshape") and entry.dims and not is_scalar:
        what = f"model {kind} '{entry.name}'"
        yield from under(("reshape", "shape"), _check_reshape(what, entry, config))
    if profile.newer_size_checks:
        if entry.HasField("reshape"):
            yield from under(("dims",), _check_count(f"{entry.name} dims", entry.dims))
            count = _check_count(f"{entry.name} reshape", entry.reshape.shape)
            yield from under(("reshape", "shape"), count)
        elif isinstance(entry, ModelInput):  # as in Triton, whose outputs are not checked
            yield from under(("dims",), _check_count(entry.name, entry.dims))
    # As in Triton, an enum number without a name, which JSON can contain, is accepted and ignored.
    is_image = isinstance(entry, ModelInput) and entry.format in _IMAGES
    if is_image and len(entry.dims) != 3:
        yield invalid_arg(f"model input NHWC/NCHW require 3 dims for {model}", "dims")
    if entry.is_shape_tensor:
        yield invalid_arg(
            f"shape tensors are only supported for TensorRT platform for {model}",
            "is_shape_tensor",
        )
    if entry.is_non_linear_format_io:
        yield invalid_arg(
            f"Non-linear IO format is only supported for the TensorRT platform for {model}",
            "is_non_linear_format_io",
        )


def _check_dims(what: str, dims: Iterable[int], model: str) -> Faults:
    wrong = [index for index, dim in enumerate(dims) if dim < 1 and dim != -1]
    if wrong:
        yield invalid_arg(
            f"{what} must be integer >= 1, or -1 to indicate a variable-size dimension for {model}",
            wrong[0],
        )


def _check_count(what: str, dims: Sequence[int]) -> Faults:
    """Check that the element count fits 64 bits. Shapes with a free dimension are not checked."""
    if -1 not in dims and prod(dims) > _MAX_INT64:
        yield invalid_arg(f"element count for tensor '{what}' exceeds maximum size of {_MAX_INT64}")


def _check_reshape(what: str, entry: ModelInput | ModelOutput, config: ConfigProto) -> Faults:
    shape = entry.reshape.shape
    yield from _check_dims(f"{what} reshape dimensions", shape, config.name)
    dims, other = _fixed_sizes(entry.dims), _fixed_sizes(shape)
    if len(dims) != len(other) and min(len(dims), len(other)) > 1:
        yield invalid_arg(
            f"{what} has different number of variable-size dimensions for dims and reshape "
            f"for {config.name}"
        )
    elif dims != other:
        yield invalid_arg(f"{what} has different size for dims and reshape for {config.name}")


def _fixed_sizes(dims: Iterable[int]) -> list[int]:
    """Return the element counts between free dimensions, which a reshape must preserve."""
    sizes = [1]
    for dim in dims:
        if dim == -1:
            sizes.append(1)
        else:
            sizes[-1] *= dim
    return sizes


def _check_batch_tensors(config: ConfigProto) -> Faults:
    """Check `batch_input` and `batch_output`.

    Triton makes these tensors for backends that request it. The Python backend does not, so here
    they only inform the model.
    """
    inputs = {entry.name for entry in config.input}
    outputs = {entry.name for entry in config.output}
    for index, entry in enumerate(config.batch_input):
        yield from under(("batch_input", index), _check_batch_input(entry, inputs, config.name))
    for index, split in enumerate(config.batch_output):
        split_faults = _check_batch_output(split, inputs, outputs, config.name)
        yield from under(("batch_output", index), split_faults)


def _check_batch_input(entry: BatchInput, inputs: Collection[str], model: str) -> Faults:
    kind = f"batch input kind '{BatchInput.Kind.Name(entry.kind)}'"
    yield from _check_one_source(kind, entry.source_input, model)
    if entry.data_type not in (DataType.TYPE_INT32, DataType.TYPE_FP32):
        yield invalid_arg(
            f"batch input data type must be TYPE_INT32 or TYPE_FP32 for {model}", "data_type"
        )
    sources = _check_known("source input", entry.source_input, inputs, model)
    yield from under(("source_input",), sources)


def _check_batch_output(
    split: BatchOutput, inputs: Collection[str], outputs: Collection[str], model: str
) -> Faults:
    kind = f"batch output kind '{BatchOutput.Kind.Name(split.kind)}'"
    yield from _check_one_source(kind, split.source_input, model)
    sources = _check_known("source input", split.source_input, inputs, model)
    yield from under(("source_input",), sources)
    targets = _check_known("target output", split.target_name, outputs, model)
    yield from under(("target_name",), targets)
    for index, target in enumerate(split.target_name):
        if target in split.target_name[:index]:
            yield invalid_arg(
                f"target output name '{target}' can only be specified once for {model}",
                *("target_name", index),
            )
    if not split.target_name:  # tritonserver exits here
        yield invalid_arg(f"batch output must specify 'target_name' for {model}", "target_name")


def _check_one_source(what: str, sources: Sequence[str], model: str) -> Faults:
    if len(sources) != 1:
        yield invalid_arg(
            f"{what} expects 1 source input, got {len(sources)} for {model}", "source_input"
        )


def _check_known(what: str, names: Iterable[str], known: Collection[str], model: str) -> Faults:
    for index, name in enumerate(names):
        if name not in known:
            yield invalid_arg(f"unknown {what} name '{name}' for {model}", index)


def _check_enums(message: Message, what: str) -> Faults:
    """Check for enum numbers without a name, which text and JSON can contain."""
    for field, value in message.ListFields():
        is_one = isinstance(value, (str, bytes, Message)) or not isinstance(value, Iterable)
        values = [value] if is_one else value
        if field.enum_type is not None:
            for number in values:
                if number not in field.enum_type.values_by_number:
                    yield invalid_arg(
                        f"{what}: found {field.name} {number}; expected a value of Triton's schema",
                        field.name,
                    )
        elif field.message_type is not None:
            for index, part in enumerate(values):
                path = (field.name,) if is_one else (field.name, index)
                yield from under(path, _check_enums(part, f"{field.name} of {what}"))


def _check_groups(config: ConfigProto) -> Faults:
    """Check instance groups, with the texts of Triton on a machine without GPUs."""
    for index, group in enumerate(config.instance_group):
        what = f"instance group {group.name} of model {config.name}"
        place = ("instance_group", index)
        if group.kind not in ModelInstanceGroup.Kind.values():
            yield internal(f"{what} has unexpected kind KIND_AUTO", *place, "kind")
            continue
        kind = ModelInstanceGroup.Kind.Name(group.kind)
        if group.kind != ModelInstanceGroup.KIND_GPU:
            if group.gpus:
                yield invalid_arg(
                    f"{what} has kind {kind} but specifies one or more GPUs", *place, "gpus"
                )
        elif not group.gpus:
            yield NotHere(
                f"{what} has kind KIND_GPU but no GPUs are available",
                *(*place, "kind"),
                hint=_ON_CPU,
            )
        else:
            yield NotHere(
                f"{what} specifies invalid or unsupported gpu id {group.gpus[0]}. GPUs with at "
                "least the minimum required CUDA compute compatibility of 6.000000 are: ",
                *(*place, "gpus"),
                hint=_ON_CPU,
            )
        if group.profile:
            yield invalid_arg(
                f"{what} and platform {config.platform}specifies profile field which is only "
                "supported for TensorRT models",
                *(*place, "profile"),
            )


@rule
def check_response_cache(config: ConfigProto) -> Faults:
    """Check that a model with a response cache has cacheable responses."""
    if not config.response_cache.enable:
        return
    if config.HasField("sequence_batching"):
        yield _no_cache(config.name, "sequence batching scheduler")
    if config.model_transaction_policy.decoupled:
        yield _no_cache(config.name, "'decoupled' transaction policy")


def _no_cache(model: str, reason: str) -> ServerError:
    return invalid_arg(
        f"Response Cache does not currently support model {model} with {reason}. "
        "Please disable the response cache.",
        *("response_cache", "enable"),
    )
