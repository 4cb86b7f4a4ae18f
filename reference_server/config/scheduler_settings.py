"""The frozen settings of instances, of the dynamic batcher and of the sequence batcher."""

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
from reference_server.core.metadata import Dims
from reference_server.core.tensor import DataType

#: The fields that hold the two values of a boolean control, and the tensor's type for each.
FALSE_TRUE = {
    "int32_false_true": DataType.INT32,
    "fp32_false_true": DataType.FP32,
    "bool_false_true": DataType.BOOL,
}


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """The limits of one queue of requests.

    Attributes:
        timeout_us: The longest waiting time in microseconds; 0: no limit.
        delays: Serve an expired request after all other requests of the queue, instead of refusing
            it.
        overridable: Requests may set a shorter timeout.
        max_size: The largest number of waiting requests; 0: no limit.
    """

    timeout_us: int = 0
    delays: bool = False
    overridable: bool = False
    max_size: int = 0

    @property
    def is_free(self) -> bool:
        """True if neither the number of requests nor their waiting time can be limited."""
        return not (self.timeout_us or self.max_size or self.overridable)


@dataclass(frozen=True, slots=True)
class DynamicBatching:
    """Settings of the dynamic batcher; sizes in rows, the delay in microseconds.

    `levels` is the number of priority levels, of which 1 is the highest; 0: there is one queue.
    `policies` has the policies that differ from `default_policy`, by level.
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
        """True if there are no priorities and no limits, so that requests are served in order."""
        return not self.levels and self.default_policy.is_free

    @staticmethod
    def from_proto(batching: ModelDynamicBatching) -> DynamicBatching:
        """Return the settings of a message."""
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
    """An amount of a resource, of the whole server or of one device."""

    name: str
    count: int
    is_global: bool


@dataclass(frozen=True, slots=True)
class InstanceConfig:
    """One instance of a model.

    Attributes:
        name: The instance's name.
        kind: `CPU` or `MODEL`.
        priority: The rate limiter's priority; 1 is the highest, 2 is scheduled half as often.
        resources: The resources that an execution occupies in the rate limiter.
        settings: The instance group without name and count. Instances with equal settings are
            interchangeable.
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
    """Return the instances of a completed configuration, group by group.

    Instances of passive groups are included; they never receive a request.
    """
    return tuple(
        InstanceConfig(
            f"{group.name}_{index}",
            ModelInstanceGroup.Kind.Name(group.kind).removeprefix("KIND_"),
            max(1, group.rate_limiter.priority),  # 0 is the default
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
    """The meaning of a control input."""

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
    """A tensor that the server passes from one request of a sequence to the next.

    `initial_dims` is the shape of the initial value, without the batch dimension. `initial_file` is
    the file of the initial value; None: zeros.
    """

    input_name: str
    output_name: str
    datatype: DataType
    initial_dims: Dims
    initial_file: str | None


@dataclass(frozen=True, slots=True)
class Direct:
    """The direct strategy: every sequence occupies one row (slot) of the batch.

    `minimum_slot_utilization` is a fraction of all rows.
    """

    max_queue_delay_us: int
    minimum_slot_utilization: float


@dataclass(frozen=True, slots=True)
class Oldest:
    """The oldest strategy: a dynamic batcher merges requests of different sequences.

    `max_candidates` is the largest number of active sequences of an instance; 0: the number of
    rows. Sizes are in rows.
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
    """Return the settings of a completed and checked message; None without `sequence_batching`."""
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
        tuple(1 if dim == -1 else dim for dim in dims),  # free dimensions start with size 1
        (initial.data_file or None) if initial is not None else None,
    )
