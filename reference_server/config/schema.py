"""The frozen model configuration that the server works with.

`ModelConfig.from_proto` reads a completed message; nothing here fills in or checks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tritonclient.grpc.model_config_pb2 import DataType as DataTypeProto
from tritonclient.grpc.model_config_pb2 import ModelConfig as ConfigProto
from tritonclient.grpc.model_config_pb2 import ModelInput, ModelOutput

from reference_server.config import render
from reference_server.core import dtypes
from reference_server.core.dtypes import DataType
from reference_server.core.metadata import Dims, Signature, TensorConfig


@dataclass(frozen=True, slots=True)
class DynamicBatching:
    """Settings of the dynamic batcher; sizes in rows, the delay in microseconds."""

    preferred_batch_sizes: tuple[int, ...]
    max_queue_delay_us: int


@dataclass(frozen=True, slots=True)
class EnsembleStep:
    """One step: which model, and how its tensors are called in the ensemble.

    `inputs` maps the model's input to the ensemble's tensor, `outputs` likewise.
    """

    model_name: str
    model_version: int
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class VersionPolicy:
    """Which version folders are served: the `latest` n, those in `specific`, or else all."""

    latest: int | None = None
    specific: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One model's completed configuration.

    `json` is the text that clients and models read, `proto` the message that it stands for.
    """

    signature: Signature
    platform: str
    backend: str
    model_filename: str
    version_policy: VersionPolicy
    instance_names: tuple[str, ...]
    dynamic_batching: DynamicBatching | None
    ensemble: tuple[EnsembleStep, ...]
    decoupled: bool
    metric_tags: tuple[tuple[str, str], ...]
    json: str
    proto: bytes

    @property
    def is_ensemble(self) -> bool:
        """True if the model is a graph of other models."""
        return self.platform == "ensemble"

    @property
    def shown_platform(self) -> str:
        """What the metadata calls `platform`."""
        return self.platform or self.backend

    @property
    def name(self) -> str:
        """The model's name."""
        return self.signature.name

    @staticmethod
    def from_proto(config: ConfigProto) -> ModelConfig:
        """The frozen form of a message that `complete` has filled in and `check` has passed."""
        batching = config.dynamic_batching
        return ModelConfig(
            signature=Signature(
                config.name,
                config.max_batch_size,
                tuple(_input(entry) for entry in config.input),
                tuple(_output(entry) for entry in config.output),
            ),
            platform=config.platform,
            backend=config.backend,
            model_filename=config.default_model_filename,
            version_policy=version_policy(config),
            instance_names=tuple(
                f"{group.name}_{index}"
                for group in config.instance_group
                for index in range(group.count)
            ),
            dynamic_batching=DynamicBatching(
                tuple(sorted(batching.preferred_batch_size)),
                batching.max_queue_delay_microseconds,
            )
            if config.HasField("dynamic_batching")
            else None,
            ensemble=tuple(
                EnsembleStep(
                    step.model_name, step.model_version, dict(step.input_map), dict(step.output_map)
                )
                for step in config.ensemble_scheduling.step
            ),
            decoupled=config.model_transaction_policy.decoupled,
            metric_tags=tuple(sorted(config.metric_tags.items())),
            json=render.as_json(config),
            proto=config.SerializeToString(deterministic=True),
        )


def datatype(number: int) -> DataType | None:
    """The data type of a schema enum value; None for TYPE_INVALID."""
    return dtypes.BY_CONFIG_NAME.get(DataTypeProto.Name(number))


def _datatype(number: int) -> DataType:
    found = datatype(number)
    assert found is not None, "check() refuses TYPE_INVALID"
    return found


def _reshape(entry: ModelInput | ModelOutput) -> Dims | None:
    return tuple(entry.reshape.shape) if entry.HasField("reshape") else None


def _input(entry: ModelInput) -> TensorConfig:
    return TensorConfig(
        entry.name,
        _datatype(entry.data_type),
        tuple(entry.dims),
        _reshape(entry),
        ragged=entry.allow_ragged_batch,
        optional=entry.optional,
    )


def _output(entry: ModelOutput) -> TensorConfig:
    return TensorConfig(
        entry.name,
        _datatype(entry.data_type),
        tuple(entry.dims),
        _reshape(entry),
        labels_file=entry.label_filename,
    )


def version_policy(config: ConfigProto) -> VersionPolicy:
    """Which versions a completed message wants to be served."""
    policy = config.version_policy
    if policy.HasField("specific"):
        return VersionPolicy(specific=tuple(policy.specific.versions))
    if policy.HasField("latest"):
        return VersionPolicy(latest=policy.latest.num_versions)
    return VersionPolicy()
