"""The samples that a model is warmed up with, as its configuration names them."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from tritonclient.grpc.model_config_pb2 import DataType as DataTypeProto
from tritonclient.grpc.model_config_pb2 import ModelConfig as ConfigProto
from tritonclient.grpc.model_config_pb2 import ModelWarmup

from reference_server.core import dtypes
from reference_server.core.dtypes import DataType
from reference_server.core.metadata import Dims


class Filling(enum.Enum):
    """Where the elements of a sample's input come from; the value is the field that says so."""

    ZEROS = "zero_data"
    RANDOM = "random_data"
    FILE = "input_data_file"
    NOTHING = None


@dataclass(frozen=True, slots=True)
class WarmupInput:
    """One input: `dims` without the batch dimension, `file` below the model's folder `warmup`.

    `datatype` is None where the configuration names none.
    """

    name: str
    datatype: DataType | None
    dims: Dims
    filling: Filling
    file: str = ""


@dataclass(frozen=True, slots=True)
class WarmupSample:
    """A batch of `batch_size` equal requests of one row each, executed `count` times."""

    name: str
    batch_size: int
    count: int
    inputs: tuple[WarmupInput, ...]


def samples(config: ConfigProto) -> tuple[WarmupSample, ...]:
    """The samples of a configuration, without those that Triton skips: of no batch size."""
    return tuple(
        WarmupSample(
            sample.name,
            sample.batch_size,
            max(1, sample.count),
            tuple(_input(name, sample.inputs[name]) for name in sorted(sample.inputs)),
        )
        for sample in config.model_warmup
        if sample.batch_size
    )


def _input(name: str, given: ModelWarmup.Input) -> WarmupInput:
    return WarmupInput(
        name,
        dtypes.BY_CONFIG_NAME.get(DataTypeProto.Name(given.data_type)),
        tuple(given.dims),
        Filling(given.WhichOneof("input_data_type")),
        given.input_data_file,
    )
