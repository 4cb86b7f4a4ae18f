"""The frozen settings of instances and schedulers: the dynamic and the sequence batcher."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from tritonclient.grpc.model_config_pb2 import ModelConfig as ConfigProto
from tritonclient.grpc.model_config_pb2 import (
    ModelDynamicBatching,
    ModelInstanceGroup,
    ModelQueuePolicy,
    ModelSequenceBatching,
)

from reference_server.config.pbtxt import known_datatype
from reference_server.core.dtypes import DataType
from reference_server.core.metadata import Dims

#: The fields that give a boolean control its two values, and the type of its tensor then.
FALSE_TRUE = {
    "int32_false_true": DataType.INT32,
    "fp32_false_true": DataType.FP32,
    "bool_false_true": DataType.BOOL,
}


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

    `kind` is `CPU` or `MODEL`. Of `priority` 1 is the first, and 2 gets half as many turns. Those
    with equal `settings` can take each other's place: their groups differ in names and counts.
    """

    name: str
    kind: str
    priority: int = 1
    resources: tuple[Resource, ...] = ()
    settings: bytes = field(default=b"", compare=False, repr=False)


def _without_count(group: ModelInstanceGroup) -> bytes:
    bare = ModelInstanceGroup()
    bare.CopyFrom(group)
    bare.ClearField("name")
    bare.ClearField("count")
    return bytes(bare.SerializeToString(deterministic=True))


def read_instances(config: ConfigProto) -> tuple[InstanceConfig, ...]:
    """The instances of a completed configuration, group by group.

    A passive group has instances that are never given a request.
    """
    return tuple(
        InstanceConfig(
            f"{group.name}_{index}",
            ModelInstanceGroup.Kind.Name(group.kind).removeprefix("KIND_"),
            max(1, group.rate_limiter.priority),  # 0 is what it is when nobody sets it
            tuple(
                Resource(entry.name, entry.count, getattr(entry, "global"))
                for entry in group.rate_limiter.resources
            ),
            _without_count(group),
        )
        for group in config.instance_group
        for index in range(group.count)
    )


class ControlKind(enum.Enum):
    """What a control input tells the model."""

    START = ModelSequenceBatching.Control.CONTROL_SEQUENCE_START
    END = ModelSequenceBatching.Control.CONTROL_SEQUENCE_END
    READY = ModelSequenceBatching.Control.CONTROL_SEQUENCE_READY
    CORRID = ModelSequenceBatching.Control.CONTROL_SEQUENCE_CORRID


@dataclass(frozen=True, slots=True)
class SequenceControl:
    """An input that the server adds. `values` stand for false and true; empty for CORRID."""

    name: str
    kind: ControlKind
    datatype: DataType
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class SequenceState:
    """A tensor that one request of a sequence leaves to the next.

    `initial_dims` are those of the value that a sequence begins with, without the batch dimension.
    `initial_file` holds that value; it is zeros if there is none.
    """

    input_name: str
    output_name: str
    datatype: DataType
    initial_dims: Dims
    initial_file: str | None


@dataclass(frozen=True, slots=True)
class Direct:
    """Every sequence has a row of the batch to itself. The utilization is a part of all rows."""

    max_queue_delay_us: int
    minimum_slot_utilization: float


@dataclass(frozen=True, slots=True)
class Oldest:
    """Requests of different sequences are batched as a dynamic batcher does; sizes in rows.

    `max_candidates` is how many sequences an instance takes up; 0 means as many as rows.
    """

    max_candidates: int
    preferred_batch_sizes: tuple[int, ...]
    max_queue_delay_us: int


@dataclass(frozen=True, slots=True)
class SequenceBatching:
    """Settings of the sequence batcher."""

    strategy: Direct | Oldest
    max_idle_us: int
    controls: tuple[SequenceControl, ...]
    states: tuple[SequenceState, ...]
    iterative: bool


def read_sequence_batching(config: ConfigProto) -> SequenceBatching | None:
    """The settings in a completed and checked message; None if the model takes no sequences."""
    if not config.HasField("sequence_batching"):
        return None
    batching = config.sequence_batching
    return SequenceBatching(
        _strategy(batching),
        batching.max_sequence_idle_microseconds,
        tuple(
            _control(entry.name, control)
            for entry in batching.control_input
            for control in entry.control
        ),
        tuple(_state(entry) for entry in batching.state),
        batching.iterative_sequence,
    )


def _strategy(batching: ModelSequenceBatching) -> Direct | Oldest:
    if batching.HasField("oldest"):
        oldest = batching.oldest
        return Oldest(
            max(0, oldest.max_candidate_sequences),
            tuple(sorted(oldest.preferred_batch_size)),
            oldest.max_queue_delay_microseconds,
        )
    direct = batching.direct
    return Direct(direct.max_queue_delay_microseconds, direct.minimum_slot_utilization)


def _control(name: str, control: ModelSequenceBatching.Control) -> SequenceControl:
    kind = ControlKind(control.kind)
    if kind is ControlKind.CORRID:
        return SequenceControl(name, kind, known_datatype(control.data_type), ())
    field = next(field for field in FALSE_TRUE if getattr(control, field))
    return SequenceControl(name, kind, FALSE_TRUE[field], tuple(getattr(control, field)))


def _state(entry: ModelSequenceBatching.State) -> SequenceState:
    initial = entry.initial_state[0] if entry.initial_state else None
    dims = entry.dims if initial is None else initial.dims
    return SequenceState(
        entry.input_name,
        entry.output_name,
        known_datatype(entry.data_type),
        tuple(1 if dim == -1 else dim for dim in dims),  # a free dimension begins as 1
        (initial.data_file or None) if initial is not None else None,
    )
