"""Metadata, configuration and statistics as the messages of Triton's gRPC service."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tritonclient.grpc.model_config_pb2 import ModelConfig as ConfigProto
from tritonclient.grpc.service_pb2 import (
    InferBatchStatistics,
    InferStatistics,
    ModelConfigResponse,
    ModelMetadataResponse,
    ModelStatistics,
    ModelStatisticsResponse,
    ServerMetadataResponse,
    StatisticDuration,
)

from reference_server.core.errors import invalid_arg
from reference_server.core.metadata import ModelMetadata, ServerMetadata, Signature, TensorConfig
from reference_server.core.request import LATEST
from reference_server.core.telemetry import Duration, Snapshot

#: A version is read as C reads numbers: what leads the text counts. Twenty digits are too many.
_LEADING_INTEGER = re.compile(r"[ \t\n\v\f\r]*([+-]?)0*([0-9]{1,20})")
_MAX_INT64 = 2**63 - 1


def model_version(text: str) -> int:
    """The version that a request names; an empty text names none. Raises ServerError."""
    if not text:
        return LATEST
    match = _LEADING_INTEGER.match(text)
    number = int(match[1] + match[2]) if match else _MAX_INT64 + 1
    if not -_MAX_INT64 - 1 <= number <= _MAX_INT64:
        raise invalid_arg(
            f"failed to get model version from specified version string '{text}' "
            "(details: stol), version should be an integral value > 0"
        )
    if number < 0:
        raise invalid_arg(
            f"invalid model version specified '{text}' , version should be an integral value > 0"
        )
    return number


def server_metadata(metadata: ServerMetadata) -> ServerMetadataResponse:
    """Name, version, extensions."""
    return ServerMetadataResponse(
        name=metadata.name, version=metadata.version, extensions=metadata.extensions
    )


def model_metadata(metadata: ModelMetadata) -> ModelMetadataResponse:
    """Name, versions, platform, inputs, outputs."""
    signature = metadata.signature
    return ModelMetadataResponse(
        name=signature.name,
        versions=map(str, metadata.versions),
        platform=metadata.platform,
        inputs=[_tensor(signature, tensor) for tensor in signature.inputs],
        outputs=[_tensor(signature, tensor) for tensor in signature.outputs],
    )


def _tensor(signature: Signature, tensor: TensorConfig) -> ModelMetadataResponse.TensorMetadata:
    return ModelMetadataResponse.TensorMetadata(
        name=tensor.name, datatype=tensor.datatype.value, shape=signature.full_dims(tensor)
    )


def model_config(proto: bytes) -> ModelConfigResponse:
    """The completed configuration, whose message is `proto`."""
    return ModelConfigResponse(config=ConfigProto.FromString(proto))


def statistics(snapshots: Sequence[Snapshot]) -> ModelStatisticsResponse:
    """The counters of each model version, in the order given."""
    return ModelStatisticsResponse(model_stats=map(_model, snapshots))


def _model(snapshot: Snapshot) -> ModelStatistics:
    return ModelStatistics(
        name=snapshot.name,
        version=str(snapshot.version),
        last_inference=snapshot.last_inference_ms,
        inference_count=snapshot.inference_count,
        execution_count=snapshot.execution_count,
        inference_stats=InferStatistics(
            success=_duration(snapshot.success),
            fail=_duration(snapshot.fail),
            queue=_duration(snapshot.queue),
            compute_input=_duration(snapshot.compute_input),
            compute_infer=_duration(snapshot.compute_infer),
            compute_output=_duration(snapshot.compute_output),
            cache_hit=_duration(snapshot.cache_hit),
            cache_miss=_duration(snapshot.cache_miss),
        ),
        batch_stats=[
            InferBatchStatistics(
                batch_size=rows,
                compute_input=_duration(batch.compute_input),
                compute_infer=_duration(batch.compute_infer),
                compute_output=_duration(batch.compute_output),
            )
            for rows, batch in snapshot.batches.items()
        ],
    )


def _duration(duration: Duration) -> StatisticDuration:
    return StatisticDuration(count=duration.count, ns=duration.ns)
