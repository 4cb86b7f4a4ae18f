"""The rules for the dynamic batcher, with Triton's texts."""

from __future__ import annotations

from tritonclient.grpc.model_config_pb2 import ModelConfig as ConfigProto
from tritonclient.grpc.model_config_pb2 import ModelDynamicBatching, ModelQueuePolicy

from reference_server.core.errors import invalid_arg


def check_polled(config: ConfigProto) -> None:
    """Raise ServerError if what `dynamic_batching` says is wrong."""
    batching = config.dynamic_batching
    for size in batching.preferred_batch_size:
        if size <= 0:
            raise invalid_arg(f"dynamic batching preferred size must be positive for {config.name}")
        if size > config.max_batch_size:
            raise invalid_arg(
                f"dynamic batching preferred size must be <= max batch size for {config.name}"
            )
    if batching.priority_levels:
        _check_levels(batching, config.name)
    if batching.preserve_ordering:
        _check_ordering(batching, config.name)


def _check_levels(batching: ModelDynamicBatching, model: str) -> None:
    levels = batching.priority_levels
    if not 1 <= batching.default_priority_level <= levels:
        raise invalid_arg(f"default priority level must be in range [1, {levels}] for {model}")
    for level in batching.priority_queue_policy:
        if not 1 <= level <= levels:
            raise invalid_arg(
                f"priority queue policy must have priority level in range [1, {levels}] for {model}"
            )


def _check_ordering(batching: ModelDynamicBatching, model: str) -> None:
    if batching.priority_levels > 1:
        raise invalid_arg(
            f"Only one priority level is allowed when 'preserve_ordering' is true for {model}"
        )
    for policy in (batching.default_queue_policy, *batching.priority_queue_policy.values()):
        delays = policy.timeout_action == ModelQueuePolicy.DELAY
        if delays and policy.default_timeout_microseconds:
            raise invalid_arg(
                "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is "
                f"true for {model}"
            )
