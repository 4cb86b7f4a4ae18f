"""The messages of all RPCs but inference, both ways."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import cast

from tritonclient.grpc.model_config_pb2 import ModelConfig as ConfigProto
from tritonclient.grpc.service_pb2 import (
    CudaSharedMemoryStatusResponse,
    InferBatchStatistics,
    InferStatistics,
    LogSettingsRequest,
    LogSettingsResponse,
    ModelConfigResponse,
    ModelMetadataResponse,
    ModelRepositoryParameter,
    ModelStatistics,
    ModelStatisticsResponse,
    RepositoryIndexResponse,
    RepositoryModelUnloadRequest,
    ServerMetadataResponse,
    StatisticDuration,
    SystemSharedMemoryStatusResponse,
    TraceSettingRequest,
    TraceSettingResponse,
)

from reference_server.core.errors import invalid_arg
from reference_server.core.metadata import (
    CudaRegion,
    ModelMetadata,
    ServerMetadata,
    Signature,
    SystemRegion,
    TensorConfig,
)
from reference_server.core.numerals import leading_integer
from reference_server.core.request import LATEST, Parameter
from reference_server.core.telemetry import Duration, Snapshot

LogValue = bool | int | str
#: The values of one trace setting; None clears it.
TraceChange = Sequence[str] | None

#: The settings in the order in which Triton looks for them; a map has none of its own.
_LOG_SETTINGS = (
    *("log_file", "log_info", "log_warning", "log_error", "log_verbose_level", "log_format"),
)
_TRACE_SETTINGS = ("trace_file", "trace_level", "trace_rate", "trace_count", "log_frequency")
_MAX_INT64 = 2**63 - 1


def model_version(text: str) -> int:
    """The version that a request names; an empty text names none. Raises ServerError."""
    if not text:
        return LATEST
    number = leading_integer(text)
    if number is None or not -_MAX_INT64 - 1 <= number <= _MAX_INT64:
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


# -- repository control


def repository_index(
    rows: Iterable[tuple[str, int | None, str | None, str]],
) -> RepositoryIndexResponse:
    """The index: rows of name, version, state and reason; what is not known is left out."""
    response = RepositoryIndexResponse()
    for name, version, state, reason in rows:
        response.models.add(
            name=name,
            version="" if version is None else str(version),
            state=state or "",
            reason=reason,
        )
    return response


def load_parameters(
    parameters: Mapping[str, ModelRepositoryParameter],
) -> dict[str, Parameter | bytes]:
    """The parameters of a load request; one that is not set is False, which none may be."""
    return {
        key: getattr(
            parameters[key], parameters[key].WhichOneof("parameter_choice") or "bool_param"
        )
        for key in sorted(parameters)
    }


def unload_dependents(request: RepositoryModelUnloadRequest) -> bool:
    """Whether an unload request wants that. Raises ServerError."""
    if "unload_dependents" not in request.parameters:
        return False
    value = request.parameters["unload_dependents"]
    if value.WhichOneof("parameter_choice") != "bool_param":
        raise invalid_arg(
            "invalid value type for 'unload_dependents' parameter, expected bool_param."
        )
    return bool(value.bool_param)


# -- settings


def log_changes(request: LogSettingsRequest) -> Iterator[tuple[str, LogValue]]:
    """The changes that a request asks for; a value that is not set comes as None."""
    for name in _LOG_SETTINGS:
        if name in request.settings:
            value = request.settings[name]
            kind = value.WhichOneof("parameter_choice")
            # None is of no setting's type, and refused as such.
            yield name, cast(LogValue, kind and getattr(value, kind))


def log_settings(settings: Mapping[str, LogValue]) -> LogSettingsResponse:
    """All settings."""
    response = LogSettingsResponse()
    for name, value in settings.items():
        written = response.settings[name]
        if isinstance(value, bool):
            written.bool_param = value
        elif isinstance(value, int):
            written.uint32_param = value
        else:
            written.string_param = value
    return response


def trace_changes(request: TraceSettingRequest) -> Iterator[tuple[str, TraceChange]]:
    """The changes that a request asks for; no values clear a setting."""
    for name in _TRACE_SETTINGS:
        if name in request.settings:
            yield name, list(request.settings[name].value) or None


def trace_settings(settings: Mapping[str, Sequence[str]]) -> TraceSettingResponse:
    """All settings."""
    response = TraceSettingResponse()
    for name, values in settings.items():
        response.settings[name].value.extend(values)
    return response


# -- shared memory regions


def system_status(regions: Sequence[SystemRegion]) -> SystemSharedMemoryStatusResponse:
    """The regions by their names."""
    return SystemSharedMemoryStatusResponse(
        regions={
            region.name: SystemSharedMemoryStatusResponse.RegionStatus(
                name=region.name,
                key=region.key,
                offset=region.offset,
                byte_size=region.byte_size,
            )
            for region in regions
        }
    )


def cuda_status(regions: Sequence[CudaRegion]) -> CudaSharedMemoryStatusResponse:
    """The regions by their names."""
    return CudaSharedMemoryStatusResponse(
        regions={
            region.name: CudaSharedMemoryStatusResponse.RegionStatus(
                name=region.name, device_id=region.device_id, byte_size=region.byte_size
            )
            for region in regions
        }
    )
