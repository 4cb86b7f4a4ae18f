"""The frozen model configuration that the server works with.

`ModelConfig.from_proto` reads a completed message; nothing here fills in or checks.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from tritonclient.grpc.model_config_pb2 import ModelConfig as ConfigProto
from tritonclient.grpc.model_config_pb2 import ModelInput, ModelOutput, ModelWarmup

from reference_server.config import render
from reference_server.config.pbtxt import datatype, known_datatype
from reference_server.config.scheduler_settings import (
    DynamicBatching,
    InstanceConfig,
    SequenceBatching,
    read_instances,
    read_sequence_batching,
)
from reference_server.core.dtypes import DataType
from reference_server.core.metadata import Dims, Signature, TensorConfig


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

    `model_filename` is relative to the version's folder, or that of a Python-based backend.

    `json` is the text that clients and models read, `proto` the message that it stands for. Of an
    ensemble's requests no more than `max_inflight_requests` are at one step at a time; 0 is any
    number. `execution_host` is where a Python model wants to run, empty if it does not mind.
    `buckets` are the bounds that the model gives histograms, by the names of their families.
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
    buckets: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    @property
    def is_ensemble(self) -> bool:
        """True if the model is a graph of other models."""
        return self.platform == "ensemble"

    @property
    def is_python(self) -> bool:
        """True if the model brings its own code, rather than a backend's name."""
        return self.backend == "python"

    @property
    def shown_platform(self) -> str:
        """What the metadata calls `platform`."""
        return self.platform or self.backend

    @property
    def instance_names(self) -> tuple[str, ...]:
        """The names of its instances."""
        return tuple(instance.name for instance in self.instances)

    @property
    def name(self) -> str:
        """The model's name."""
        return self.signature.name

    def has_groups_of(self, config: ConfigProto) -> bool:
        """Whether a message has the same instance groups."""
        return bool(ConfigProto.FromString(self.proto).instance_group == config.instance_group)

    @staticmethod
    def from_proto(config: ConfigProto, *, names_all: bool = False) -> ModelConfig:
        """The frozen form of a message that `complete` has filled in and `check` has passed.

        `names_all`: as in `render.as_json`.
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
            json=render.as_json(config, names_all=names_all),
            proto=config.SerializeToString(deterministic=True),  # maps in the same order each time
            execution_host=execution_host(config),
        )


def execution_host(config: ConfigProto) -> str:
    """The parameter EXECUTION_HOST of a message; empty if there is none."""
    name = "EXECUTION_HOST"
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
    """Which versions a completed message wants to be served."""
    policy = config.version_policy
    if policy.HasField("specific"):
        return VersionPolicy(specific=tuple(policy.specific.versions))
    if policy.HasField("latest"):
        return VersionPolicy(latest=policy.latest.num_versions)
    return VersionPolicy()


class WarmupData(enum.Enum):
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
    """The samples of a configuration, without those that Triton skips: of no batch size."""
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


def _warmup_input(name: str, given: ModelWarmup.Input) -> WarmupInput:
    return WarmupInput(
        name,
        datatype(given.data_type),
        tuple(given.dims),
        WarmupData(given.WhichOneof("input_data_type")),
        given.input_data_file,
    )
