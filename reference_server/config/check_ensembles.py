"""The rules for the configuration of an ensemble, before its models are looked at."""

from __future__ import annotations

from tritonclient.grpc.model_config_pb2 import ModelConfig as ConfigProto

from reference_server.core.errors import invalid_arg


def check_polled(config: ConfigProto) -> None:
    """Raise ServerError if an ensemble's configuration is wrong, whatever its models are like."""
    name = config.name
    if config.backend:
        raise invalid_arg(
            f"Ensemble model '{name}' must have platform type 'ensemble' and empty backend type"
        )
    if not config.HasField("ensemble_scheduling"):
        raise invalid_arg(
            f"ensemble scheduling must be set for ensemble {name} whose platform is ensemble"
        )
    for field, words in (("optimization", "optimization"), ("instance_group", "instance group")):
        if field in (found.name for found, _ in config.ListFields()):
            raise invalid_arg(f"{words} should not be specified for ensemble '{name}'")
    if config.model_warmup:
        raise invalid_arg(f"model_warmup can not be specified for ensemble '{name}'")
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
    _check_connected(config)


def _check_connected(config: ConfigProto) -> None:
    """Every output must come from the ensemble's inputs, step by step, and every tensor serve."""
    connected = {entry.name for entry in config.input}
    steps = config.ensemble_scheduling.step
    waiting = list(steps)
    while ready := [step for step in waiting if connected.issuperset(step.input_map.values())]:
        connected.update(tensor for step in ready for tensor in step.output_map.values())
        waiting = [step for step in waiting if step not in ready]
    for entry in config.output:
        for step in waiting:
            if entry.name in step.output_map.values():
                missing = min(set(step.input_map.values()) - connected)
                raise invalid_arg(
                    f"output '{entry.name}' for ensemble '{config.name}' is not written: at least "
                    f"one of its depending tensors, '{missing}', is not connected"
                )
    read = {tensor for step in steps for tensor in step.input_map.values()}
    written = {tensor for step in steps for tensor in step.output_map.values()}
    unused = written - read - {entry.name for entry in config.output}
    for tensor in sorted(unused | ((read | written) - connected)):
        raise invalid_arg(f"ensemble tensor '{tensor}' is unused in ensemble '{config.name}'")
