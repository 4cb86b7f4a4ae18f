"""Decodes and encodes the messages of all RPCs except inference."""

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

from reference_server.core.cpp import leading_integer
from reference_server.core.errors import invalid_arg
from reference_server.core.metadata import (
    CudaRegion,
    ModelMetadata,
    ServerMetadata,
    Signature,
    SystemRegion,
    TensorConfig,
)
from reference_server.core.request import LATEST, Parameter
from reference_server.core.telemetry import BATCH_DURATIONS, DURATIONS, BatchStatistics, Snapshot

LogValue = bool | int | str
#: The values of one trace setting; None clears it.
TraceChange = Sequence[str] | None

#: The settings in the order in which Triton reads them; a map has no order.
_LOG_SETTINGS = (
    *("log_file", "log_info", "log_warning", "log_error", "log_verbose_level", "log_format"),
)
_TRACE_SETTINGS = ("trace_file", "trace_level", "trace_rate", "trace_count", "log_frequency")
_MAX_INT64 = 2**63 - 1


def model_version(text: str) -> int:
    """Return the version that a request names, LATEST if empty. Raises ServerError."""
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
    """Encode name, version and extensions of the server."""
    return ServerMetadataResponse(
        name=metadata.name, version=metadata.version, extensions=metadata.extensions
    )


def model_metadata(metadata: ModelMetadata) -> ModelMetadataResponse:
    """Encode name, versions, platform, inputs and outputs of a model."""
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
    """Encode the completed configuration, whose serialized message is `proto`."""
    return ModelConfigResponse(config=ConfigProto.FromString(proto))


def statistics(snapshots: Sequence[Snapshot]) -> ModelStatisticsResponse:
    """Encode the counters of each model version, in the given order."""
    return ModelStatisticsResponse(model_stats=map(_model, snapshots))


def _model(snapshot: Snapshot) -> ModelStatistics:
    return ModelStatistics(
        name=snapshot.name,
        version=str(snapshot.version),
        last_inference=snapshot.last_inference_ms,
        inference_count=snapshot.inference_count,
        execution_count=snapshot.execution_count,
        inference_stats=InferStatistics(**_durations(snapshot, DURATIONS)),
        batch_stats=[
            InferBatchStatistics(batch_size=rows, **_durations(batch, BATCH_DURATIONS))
            for rows, batch in snapshot.batches.items()
        ],
    )


def _durations(
    counters: Snapshot | BatchStatistics, names: Iterable[str]
) -> dict[str, StatisticDuration]:
    durations = {name: getattr(counters, name) for name in names}
    return {
        name: StatisticDuration(count=each.count, ns=each.ns) for name, each in durations.items()
    }


# -- repository control


def repository_index(
    rows: Iterable[tuple[str, int | None, str | None, str]],
) -> RepositoryIndexResponse:
    """Encode rows of name, version, state and reason; unknown values are left out."""
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
    """Return the parameters of a load request. An unset value is False, which is refused later."""
    return {
        key: getattr(
            parameters[key], parameters[key].WhichOneof("parameter_choice") or "bool_param"
        )
        for key in sorted(parameters)
    }


def unload_dependents(request: RepositoryModelUnloadRequest) -> bool:
    """Return whether dependents are unloaded, too. Raises ServerError."""
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
    """Yield the changes of a request, with None for an unset value."""
    for name in _LOG_SETTINGS:
        if name in request.settings:
            value = request.settings[name]
            kind = value.WhichOneof("parameter_choice")
            # No setting accepts None; it is refused later.
            yield name, cast(LogValue, kind and getattr(value, kind))


def log_settings(settings: Mapping[str, LogValue]) -> LogSettingsResponse:
    """Encode all settings."""
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
    """Yield the changes of a request; a setting without values is cleared."""
    for name in _TRACE_SETTINGS:
        if name in request.settings:
            yield name, list(request.settings[name].value) or None


def trace_settings(settings: Mapping[str, Sequence[str]]) -> TraceSettingResponse:
    """Encode all settings."""
    response = TraceSettingResponse()
    for name, values in settings.items():
        response.settings[name].value.extend(values)
    return response


# -- shared memory regions


def system_status(regions: Sequence[SystemRegion]) -> SystemSharedMemoryStatusResponse:
    """Encode the regions, by name."""
    return SystemSharedMemoryStatusResponse(
        regions={
            region.name: SystemSharedMemoryStatusResponse.RegionStatus(
                name=region.name, key=region.key, offset=region.offset, byte_size=region.byte_size
            )
            for region in regions
        }
    )


def cuda_status(regions: Sequence[CudaRegion]) -> CudaSharedMemoryStatusResponse:
    """Encode the regions, by name."""
    return CudaSharedMemoryStatusResponse(
        regions={
            region.name: CudaSharedMemoryStatusResponse.RegionStatus(
                name=region.name, device_id=region.device_id, byte_size=region.byte_size
            )
            for region in regions
        }
    )
