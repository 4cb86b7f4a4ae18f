"""The frozen settings of a model that serves sequences."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from tritonclient.grpc.model_config_pb2 import DataType as DataTypeProto
from tritonclient.grpc.model_config_pb2 import ModelConfig as ConfigProto
from tritonclient.grpc.model_config_pb2 import ModelSequenceBatching

from reference_server.core import dtypes
from reference_server.core.dtypes import DataType
from reference_server.core.metadata import Dims

DEFAULT_IDLE_US = 1_000_000
#: The fields that give a boolean control its two values, and the type of its tensor then.
FALSE_TRUE = {
    "int32_false_true": DataType.INT32,
    "fp32_false_true": DataType.FP32,
    "bool_false_true": DataType.BOOL,
}


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


def complete(config: ConfigProto) -> None:
    """Fill in what Triton does; a model without sequences is left alone."""
    if not config.HasField("sequence_batching"):
        return
    batching = config.sequence_batching
    batching.max_sequence_idle_microseconds = (
        batching.max_sequence_idle_microseconds or DEFAULT_IDLE_US
    )
    if batching.HasField("oldest") and config.max_batch_size > 0:
        sizes = batching.oldest.preferred_batch_size
        if not sizes:
            sizes.append(config.max_batch_size)


def read(config: ConfigProto) -> SequenceBatching | None:
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
        return SequenceControl(name, kind, _datatype(control.data_type), ())
    field = next(field for field in FALSE_TRUE if getattr(control, field))
    return SequenceControl(name, kind, FALSE_TRUE[field], tuple(getattr(control, field)))


def _state(entry: ModelSequenceBatching.State) -> SequenceState:
    initial = entry.initial_state[0] if entry.initial_state else None
    dims = entry.dims if initial is None else initial.dims
    return SequenceState(
        entry.input_name,
        entry.output_name,
        _datatype(entry.data_type),
        tuple(1 if dim == -1 else dim for dim in dims),
        (initial.data_file or None) if initial is not None else None,
    )


def _datatype(number: int) -> DataType:
    datatype = dtypes.BY_CONFIG_NAME[DataTypeProto.Name(number)]
    assert datatype is not None, "check_sequences refuses TYPE_INVALID"
    return datatype
