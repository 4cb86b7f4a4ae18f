"""The frozen model configuration that the server works with.

`ModelConfig.from_proto` converts a completed and checked message.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from tritonclient.grpc.model_config_pb2 import ModelConfig as ConfigProto
from tritonclient.grpc.model_config_pb2 import ModelInput, ModelOutput, ModelWarmup

from reference_server.config import json_form
from reference_server.config.pbtxt import datatype, known_datatype
from reference_server.config.scheduler_settings import (
    DynamicBatching,
    InstanceConfig,
    SequenceBatching,
    read_instances,
    read_sequence_batching,
)
from reference_server.core.metadata import Dims, Signature, TensorConfig
from reference_server.core.tensor import DataType


@dataclass(frozen=True, slots=True)
class EnsembleStep:
    """One step of an ensemble.

    `inputs` and `outputs` map the model's inputs and outputs to tensors of the ensemble.
    """

    model_name: str
    model_version: int
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class VersionPolicy:
    """The versions to serve: the `latest` n versions, the versions in `specific`, or all."""

    latest: int | None = None
    specific: tuple[int, ...] | None = None


#: The parameter of models whose answers are made up by `reference-server try`.
STAND_IN = "STAND_IN"


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One model's completed configuration.

    Attributes:
        model_filename: The file's path, relative to the version's folder or to the folder of a
            Python-based backend.
        max_inflight_requests: The largest number of an ensemble's requests at one step; 0: no
            limit.
        json: The JSON text that clients and models receive.
        proto: The serialized message of `json`.
        execution_host: The parameter EXECUTION_HOST, which selects where a Python model runs; empty
            if it is not set.
        environment: The path in EXECUTION_ENV_PATH, set when the model is loaded; empty for the
            server's own Python environment.
        stand_in: The parameter STAND_IN: the reason why the model's answers are made up; empty if
            they are real.
        buckets: The bounds of custom histogram buckets, by metric family.
    """

    signature: Signature
    platform: str
    backend: str
    model_filename: str
    version_policy: VersionPolicy
    instances: tuple[InstanceConfig, ...]
    dynamic_batching: DynamicBatching | None
    sequence_batching: SequenceBatching | None
    ensemble: tuple[EnsembleStep, ...]
    max_inflight_requests: int
    decoupled: bool
    metric_tags: tuple[tuple[str, str], ...]
    caches_responses: bool
    warmup: tuple[WarmupSample, ...]
    json: str
    proto: bytes
    execution_host: str = ""
    environment: str = ""
    stand_in: str = ""
    buckets: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    @property
    def is_ensemble(self) -> bool:
        """True if the model is a graph of other models."""
        return self.platform == "ensemble"

    @property
    def is_python(self) -> bool:
        """True if the model consists of its own Python code."""
        return self.backend == "python"

    @property
    def shown_platform(self) -> str:
        """The value of `platform` in the metadata."""
        return self.platform or self.backend

    @property
    def instance_names(self) -> tuple[str, ...]:
        """The names of the instances."""
        return tuple(instance.name for instance in self.instances)

    @property
    def name(self) -> str:
        return self.signature.name

    def has_groups_of(self, config: ConfigProto) -> bool:
        """Return True if `config` has the same instance groups."""
        return bool(ConfigProto.FromString(self.proto).instance_group == config.instance_group)

    @staticmethod
    def from_proto(config: ConfigProto, *, newer_fields: bool = False) -> ModelConfig:
        """Return the frozen form of a completed and checked message.

        Args:
            config: The message.
            newer_fields: As in `json_form.as_json`.
        """
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
            instances=read_instances(config),
            dynamic_batching=DynamicBatching.from_proto(config.dynamic_batching)
            if config.HasField("dynamic_batching")
            else None,
            sequence_batching=read_sequence_batching(config),
            ensemble=tuple(
                EnsembleStep(
                    step.model_name, step.model_version, dict(step.input_map), dict(step.output_map)
                )
                for step in config.ensemble_scheduling.step
            ),
            max_inflight_requests=config.ensemble_scheduling.max_inflight_requests,
            decoupled=config.model_transaction_policy.decoupled,
            metric_tags=tuple(sorted(config.metric_tags.items())),
            buckets={
                control.metric_identifier.family: tuple(control.histogram_options.buckets)
                for control in config.model_metrics.metric_control
            },
            caches_responses=config.response_cache.enable,
            warmup=warmup_samples(config),
            json=json_form.as_json(config, newer_fields=newer_fields),
            proto=config.SerializeToString(
                deterministic=True
            ),  # otherwise the order of maps varies
            execution_host=parameter(config, "EXECUTION_HOST"),
            stand_in=parameter(config, STAND_IN),
        )


def parameter(config: ConfigProto, name: str) -> str:
    """Return a parameter of a message; empty if it is not set."""
    return config.parameters[name].string_value if name in config.parameters else ""


def _reshape(entry: ModelInput | ModelOutput) -> Dims | None:
    return tuple(entry.reshape.shape) if entry.HasField("reshape") else None


def _input(entry: ModelInput) -> TensorConfig:
    return TensorConfig(
        entry.name,
        known_datatype(entry.data_type),
        tuple(entry.dims),
        _reshape(entry),
        ragged=entry.allow_ragged_batch,
        optional=entry.optional,
    )


def _output(entry: ModelOutput) -> TensorConfig:
    return TensorConfig(
        entry.name,
        known_datatype(entry.data_type),
        tuple(entry.dims),
        _reshape(entry),
        labels_file=entry.label_filename,
    )


def version_policy(config: ConfigProto) -> VersionPolicy:
    """Return the version policy of a completed message."""
    policy = config.version_policy
    if policy.HasField("specific"):
        return VersionPolicy(specific=tuple(policy.specific.versions))
    if policy.HasField("latest"):
        return VersionPolicy(latest=policy.latest.num_versions)
    return VersionPolicy()


class WarmupData(enum.Enum):
    """The source of a warm-up input's elements; the value is the field of the schema."""

    ZEROS = "zero_data"
    RANDOM = "random_data"
    FILE = "input_data_file"
    NOTHING = None


@dataclass(frozen=True, slots=True)
class WarmupInput:
    """One input of a warm-up sample.

    `dims` has no batch dimension. `file` is relative to the folder `warmup` of the model. If the
    configuration sets no data type, `datatype` is None.
    """

    name: str
    datatype: DataType | None
    dims: Dims
    data: WarmupData
    file: str = ""


@dataclass(frozen=True, slots=True)
class WarmupSample:
    """A batch of `batch_size` equal requests of one row each, executed `count` times."""

    name: str
    batch_size: int
    count: int
    inputs: tuple[WarmupInput, ...]


def warmup_samples(config: ConfigProto) -> tuple[WarmupSample, ...]:
    """Return the warm-up samples. As in Triton, samples without a batch size are skipped."""
    return tuple(
        WarmupSample(
            sample.name,
            sample.batch_size,
            max(1, sample.count),
            tuple(_warmup_input(name, sample.inputs[name]) for name in sorted(sample.inputs)),
        )
        for sample in config.model_warmup
        if sample.batch_size
    )


def _warmup_input(name: str, entry: ModelWarmup.Input) -> WarmupInput:
    return WarmupInput(
        name,
        datatype(entry.data_type),
        tuple(entry.dims),
        WarmupData(entry.WhichOneof("input_data_type")),
        entry.input_data_file,
    )
