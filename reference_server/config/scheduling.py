"""The settings of the dynamic batcher and of the instances, frozen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tritonclient.grpc.model_config_pb2 import ModelConfig as ConfigProto
from tritonclient.grpc.model_config_pb2 import (
    ModelDynamicBatching,
    ModelInstanceGroup,
    ModelQueuePolicy,
)


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """What may wait in one queue, and for how long; 0 is without limit.

    A request that waits longer than `timeout_us` is refused; with `delays` it is only served after
    all others of its queue. With `overridable` a request may ask for a shorter time.
    """

    timeout_us: int = 0
    delays: bool = False
    overridable: bool = False
    max_size: int = 0

    @property
    def is_free(self) -> bool:
        """True if whatever comes may wait for ever."""
        return not self.timeout_us and not self.max_size


@dataclass(frozen=True, slots=True)
class DynamicBatching:
    """Settings of the dynamic batcher; sizes in rows, the delay in microseconds.

    Of the `levels` of priority 1 is the first; 0: there is one queue. `policies` are those of the
    levels that have one of their own.
    """

    preferred_batch_sizes: tuple[int, ...]
    max_queue_delay_us: int
    preserve_ordering: bool = False
    levels: int = 0
    default_level: int = 0
    default_policy: QueuePolicy = QueuePolicy()
    policies: Mapping[int, QueuePolicy] = field(default_factory=dict)

    @property
    def is_free(self) -> bool:
        """True if no request goes before another, is refused, or expires."""
        return not self.levels and self.default_policy.is_free

    @staticmethod
    def from_proto(batching: ModelDynamicBatching) -> DynamicBatching:
        """The frozen form of a message."""
        return DynamicBatching(
            tuple(sorted(batching.preferred_batch_size)),
            batching.max_queue_delay_microseconds,
            batching.preserve_ordering,
            batching.priority_levels,
            batching.default_priority_level,
            _policy(batching.default_queue_policy),
            {
                level: _policy(policy)
                for level, policy in sorted(batching.priority_queue_policy.items())
            },
        )


def _policy(policy: ModelQueuePolicy) -> QueuePolicy:
    return QueuePolicy(
        policy.default_timeout_microseconds,
        policy.timeout_action == ModelQueuePolicy.DELAY,
        policy.allow_timeout_override,
        policy.max_queue_size,
    )


@dataclass(frozen=True, slots=True)
class Resource:
    """So much of a resource, of the whole server or of one device."""

    name: str
    count: int
    is_global: bool


@dataclass(frozen=True, slots=True)
class InstanceConfig:
    """One instance: its name, what it runs on, and what the rate limiter is to know of it.

    `kind` is `CPU` or `MODEL`. Of `priority` 1 is the first, and 2 gets half as many turns.
    """

    name: str
    kind: str
    priority: int = 1
    resources: tuple[Resource, ...] = ()


def instances(config: ConfigProto) -> tuple[InstanceConfig, ...]:
    """The instances of a completed configuration, group by group.

    A passive group has instances that are never given a request.
    """
    return tuple(
        InstanceConfig(
            f"{group.name}_{index}",
            ModelInstanceGroup.Kind.Name(group.kind).removeprefix("KIND_"),
            max(1, group.rate_limiter.priority),
            tuple(
                Resource(entry.name, entry.count, getattr(entry, "global"))
                for entry in group.rate_limiter.resources
            ),
        )
        for group in config.instance_group
        for index in range(group.count)
    )
