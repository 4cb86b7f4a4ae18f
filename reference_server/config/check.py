"""The rules that a completed configuration must meet, with Triton's texts.

Triton checks at two moments: when it reads the repository (`check_polled`), and when it loads
the model (`check_loaded`), after the model's own auto-completion.
"""

from __future__ import annotations

from tritonclient.grpc.model_config_pb2 import ModelConfig as ConfigProto
from tritonclient.grpc.model_config_pb2 import ModelInput, ModelInstanceGroup, ModelOutput

from reference_server.config import schema
from reference_server.core.errors import invalid_arg, unsupported


def check_polled(config: ConfigProto, directory_name: str) -> None:
    """Raise ServerError if the configuration alone, before the model is asked, is wrong."""
    name = config.name
    if name != directory_name:
        raise invalid_arg(
            f"unexpected directory name '{directory_name}' for model '{name}', "
            "directory name must equal model name"
        )
    if config.max_batch_size < 0:
        raise invalid_arg(f"'max_batch_size' must be non-negative value for {name}")
    _check_dynamic_batching(config)
    if config.platform == "ensemble":
        _check_ensemble(config)


def _check_dynamic_batching(config: ConfigProto) -> None:
    for size in config.dynamic_batching.preferred_batch_size:
        if size <= 0:
            raise invalid_arg(f"dynamic batching preferred size must be positive for {config.name}")
        if size > config.max_batch_size:
            raise invalid_arg(
                f"dynamic batching preferred size must be <= max batch size for {config.name}"
            )


def _check_ensemble(config: ConfigProto) -> None:
    name = config.name
    steps = config.ensemble_scheduling.step
    if not steps:
        raise invalid_arg(f"must specify 'step' for ensemble '{name}'")
    read: set[str] = set()
    written = {entry.name for entry in config.input}
    for index, step in enumerate(steps):
        for field in ("model_name", "input_map", "output_map"):
            if not getattr(step, field):
                raise invalid_arg(f"must specify '{field}' in step {index} of ensemble '{name}'")
        read.update(step.input_map.values())
        for tensor in step.output_map.values():
            if tensor in written:
                raise invalid_arg(
                    f"ensemble tensor '{tensor}' can appear in an output map only once "
                    f"for ensemble '{name}' step {index}"
                )
            written.add(tensor)
    for kind, entries, known in (("input", config.input, read), ("output", config.output, written)):
        for entry in entries:
            if entry.name not in known:
                raise invalid_arg(
                    f"ensemble {kind} '{entry.name}' for ensemble {name}' is not used"
                )


def check_loaded(config: ConfigProto) -> None:
    """Raise ServerError if the configuration, as the model completed it, cannot be served."""
    name = config.name
    for entry in config.input:
        _check_tensor("input", entry, name)
    for entry in config.output:
        _check_tensor("output", entry, name)
    if config.platform == "ensemble":
        return
    if config.platform or config.backend != "python":
        raise invalid_arg(
            f"unable to find backend library for backend '{config.backend}', "
            "try specifying runtime on the model configuration."
        )
    for group in config.instance_group:
        if group.kind == ModelInstanceGroup.KIND_GPU:
            raise invalid_arg(
                f"instance group {group.name} of model {name} has kind KIND_GPU "
                "but no GPUs are available"
            )
        if group.kind == ModelInstanceGroup.KIND_CPU and group.gpus:
            raise invalid_arg(
                f"instance group {group.name} of model {name} has kind KIND_CPU "
                "but specifies one or more GPUs"
            )
    _check_served_here(config)


def _check_tensor(kind: str, entry: ModelInput | ModelOutput, model: str) -> None:
    if not entry.name:
        raise invalid_arg(f"model {kind} must specify 'name' for {model}")
    if schema.datatype(entry.data_type) is None:
        raise invalid_arg(f"model {kind} '{entry.name}' must specify 'data_type' for {model}")
    if not entry.dims and not entry.HasField("reshape"):
        raise invalid_arg(f"model {kind} '{entry.name}' must specify 'dims' for {model}")
    for dim in entry.dims:
        if dim < 1 and dim != -1:
            raise invalid_arg(
                f"model {kind} '{entry.name}' dimension must be integer >= 1, "
                f"or -1 to indicate a variable-size dimension for {model}"
            )


def _check_served_here(config: ConfigProto) -> None:
    """Refuse what Triton serves and this server does not yet, rather than serve it wrongly."""
    unserved = {
        "sequence_batching": config.HasField("sequence_batching"),
        "model_transaction_policy.decoupled": config.model_transaction_policy.decoupled,
        "model_warmup": bool(config.model_warmup),
        "dynamic_batching.priority_levels": bool(config.dynamic_batching.priority_levels),
        "dynamic_batching.default_queue_policy": config.dynamic_batching.HasField(
            "default_queue_policy"
        ),
        "dynamic_batching.preserve_ordering": config.dynamic_batching.preserve_ordering,
        "batch_input": bool(config.batch_input),
        "batch_output": bool(config.batch_output),
    }
    used = [field for field, present in unserved.items() if present]
    if used:
        raise unsupported(
            f"model '{config.name}' sets {', '.join(used)}, "
            "which the reference server does not serve yet"
        )
