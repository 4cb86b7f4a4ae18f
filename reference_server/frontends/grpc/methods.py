"""The table of all RPCs, and the methods that answer them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from google.protobuf.message import Message
from tritonclient.grpc import service_pb2 as pb

from reference_server.codecs import management_proto
from reference_server.core.backlog import ANY_NUMBER
from reference_server.core.errors import unavailable
from reference_server.core.health import Probe
from reference_server.core.metadata import CudaRegion, SystemRegion
from reference_server.core.ports import Clock
from reference_server.core.profiles import V2_51, TritonProfile
from reference_server.frontends.event_loop import CODECS, Background, Mailbox
from reference_server.frontends.grpc import inference
from reference_server.frontends.grpc.calls import (
    IGNORING,
    AnswerOrWork,
    Call,
    CallHandler,
    Method,
    blocking,
    immediate,
    maybe_blocking,
)
from reference_server.gateway.forwarding import HeaderForwarding
from reference_server.gateway.gateway import Gateway
from reference_server.gateway.inference import Inferences, deliver
from reference_server.gateway.log_and_trace_settings import LogSettings, TraceSettings
from reference_server.gateway.repository_control import RepositoryControl
from reference_server.gateway.shared_memory import SharedMemory
from reference_server.options import Restriction

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT")

#: The prefix of full method names, and the full name of the health service's method.
SERVICE = "/inference.GRPCInferenceService/"
HEALTH_CHECK = "/grpc.health.v1.Health/Check"
#: grpc.health.v1.HealthCheckResponse with the status SERVING or NOT_SERVING.
SERVING, NOT_SERVING = b"\x08\x01", b"\x08\x02"
_METADATA_PREFIX = "triton-grpc-protocol-"
_CATEGORIES = {
    "health": ("ServerLive", "ServerReady", "ModelReady", "Check"),
    "metadata": ("ServerMetadata", "ModelMetadata"),
    "inference": ("ModelInfer", "ModelStreamInfer"),
    "shared-memory": (
        *("SystemSharedMemoryStatus", "SystemSharedMemoryRegister"),
        *("SystemSharedMemoryUnregister", "CudaSharedMemoryStatus"),
        *("CudaSharedMemoryRegister", "CudaSharedMemoryUnregister"),
    ),
    "model-config": ("ModelConfig",),
    "model-repository": ("RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"),
    "statistics": ("ModelStatistics",),
    "trace": ("TraceSetting",),
    "logging": ("LogSettings",),
}
#: The category of each method, for restrictions. `Check` is a method of gRPC's health service.
CATEGORY = {name: category for category, names in _CATEGORIES.items() for name in names}


def table(
    gateway: Gateway,
    shared_memory: SharedMemory,
    control: RepositoryControl,
    loop: asyncio.AbstractEventLoop,
    clock: Clock,
    *,
    restrictions: Mapping[str, Restriction] | None = None,
    forwarding: HeaderForwarding | None = None,
    profile: TritonProfile = V2_51,
    most_responses: int = ANY_NUMBER,
) -> Mapping[str, Method]:
    """Return the methods by full name (`/package.Service/Method`).

    The methods of a category in `restrictions` need the given metadata. At most `most_responses`
    responses of decoupled models are queued for a stream's client.
    """
    background = Background(loop)
    codecs = Background(loop, CODECS)
    answers = Mailbox(loop, deliver)
    inferences = Inferences(
        *(gateway, shared_memory, clock, inference.TRACE_EVENTS),
        *(answers.post, codecs.run, forwarding),
    )
    methods: dict[str, Method] = {}
    for subject in (
        _core(gateway, codecs, background),
        inference.methods(inferences, codecs.run, profile, most_responses),
        _shared_memory(shared_memory, codecs),
        _settings(gateway.logging, gateway.tracing, codecs),
        _repository(control, codecs, background, Background(loop, CODECS)),
    ):
        methods.update((SERVICE + name, method) for name, method in subject.items())
    # A health request has one string, like this type: the name of a service, which Triton ignores.
    methods[HEALTH_CHECK] = maybe_blocking(
        pb.SystemSharedMemoryStatusRequest,
        lambda request: _probed(gateway.ready(), lambda ready: SERVING if ready else NOT_SERVING),
        codecs,
        background,
    )
    return restricted(methods, restrictions or {})


def _probed(
    probes: Sequence[Probe] | None, response: Callable[[bool], ResponseT]
) -> ResponseT | Callable[[], ResponseT]:
    """Return the response, or blocking work that calls the probes for it."""
    if not probes:
        return response(probes is not None)
    return lambda: response(all(probe() for probe in probes))


def _core(gateway: Gateway, reading: Background, background: Background) -> Mapping[str, Method]:
    version = management_proto.model_version

    def model_metadata(request: pb.ModelMetadataRequest) -> pb.ModelMetadataResponse:
        found = gateway.model_metadata(request.name, version(request.version))
        return management_proto.model_metadata(found)

    def model_config(request: pb.ModelConfigRequest) -> pb.ModelConfigResponse:
        found = gateway.find(request.name, version(request.version))
        return management_proto.model_config(found.config.proto)

    def statistics(request: pb.ModelStatisticsRequest) -> AnswerOrWork:
        number = version(request.version)

        def answer() -> pb.ModelStatisticsResponse:
            return management_proto.statistics(gateway.statistics(request.name, number))

        return answer if not request.name and gateway.has_many() else answer()

    return {
        "ServerLive": immediate(
            pb.ServerLiveRequest, lambda _: pb.ServerLiveResponse(live=gateway.live()), reading
        ),
        "ServerReady": maybe_blocking(
            pb.ServerReadyRequest,
            lambda _: _probed(gateway.ready(), lambda ready: pb.ServerReadyResponse(ready=ready)),
            *(reading, background),
        ),
        "ModelReady": maybe_blocking(
            pb.ModelReadyRequest,
            lambda request: _probed(
                gateway.model_ready(request.name, version(request.version)),
                lambda ready: pb.ModelReadyResponse(ready=ready),
            ),
            *(reading, background),
        ),
        "ServerMetadata": immediate(
            pb.ServerMetadataRequest,
            lambda _: management_proto.server_metadata(gateway.server_metadata()),
            reading,
        ),
        "ModelMetadata": immediate(pb.ModelMetadataRequest, model_metadata, reading),
        "ModelConfig": immediate(pb.ModelConfigRequest, model_config, reading),
        "ModelStatistics": maybe_blocking(pb.ModelStatisticsRequest, statistics, reading, reading),
    }


def _shared_memory(shared_memory: SharedMemory, reading: Background) -> Mapping[str, Method]:

    def system_status(
        request: pb.SystemSharedMemoryStatusRequest,
    ) -> pb.SystemSharedMemoryStatusResponse:
        return management_proto.system_status(shared_memory.regions(SystemRegion, request.name))

    def system_register(
        request: pb.SystemSharedMemoryRegisterRequest,
    ) -> pb.SystemSharedMemoryRegisterResponse:
        shared_memory.register_system(request.name, request.key, request.byte_size, request.offset)
        return pb.SystemSharedMemoryRegisterResponse()

    def system_unregister(
        request: pb.SystemSharedMemoryUnregisterRequest,
    ) -> pb.SystemSharedMemoryUnregisterResponse:
        shared_memory.unregister(SystemRegion, request.name)
        return pb.SystemSharedMemoryUnregisterResponse()

    def cuda_status(request: pb.CudaSharedMemoryStatusRequest) -> pb.CudaSharedMemoryStatusResponse:
        return management_proto.cuda_status(shared_memory.regions(CudaRegion, request.name))

    def cuda_register(
        request: pb.CudaSharedMemoryRegisterRequest,
    ) -> pb.CudaSharedMemoryRegisterResponse:
        shared_memory.register_cuda(
            request.name, request.raw_handle, request.device_id, request.byte_size
        )
        return pb.CudaSharedMemoryRegisterResponse()

    def cuda_unregister(
        request: pb.CudaSharedMemoryUnregisterRequest,
    ) -> pb.CudaSharedMemoryUnregisterResponse:
        shared_memory.unregister(CudaRegion, request.name)
        return pb.CudaSharedMemoryUnregisterResponse()

    return {
        "SystemSharedMemoryStatus": immediate(
            pb.SystemSharedMemoryStatusRequest, system_status, reading
        ),
        "SystemSharedMemoryRegister": immediate(
            pb.SystemSharedMemoryRegisterRequest, system_register, reading
        ),
        "SystemSharedMemoryUnregister": immediate(
            pb.SystemSharedMemoryUnregisterRequest, system_unregister, reading
        ),
        "CudaSharedMemoryStatus": immediate(pb.CudaSharedMemoryStatusRequest, cuda_status, reading),
        "CudaSharedMemoryRegister": immediate(
            pb.CudaSharedMemoryRegisterRequest, cuda_register, reading
        ),
        "CudaSharedMemoryUnregister": immediate(
            pb.CudaSharedMemoryUnregisterRequest, cuda_unregister, reading
        ),
    }


def _settings(log: LogSettings, trace: TraceSettings, reading: Background) -> Mapping[str, Method]:
    """Return the RPCs of settings. They return the settings after the requested changes."""

    def log_settings(request: pb.LogSettingsRequest) -> pb.LogSettingsResponse:
        return management_proto.log_settings(log.update(management_proto.log_changes(request)))

    def trace_setting(request: pb.TraceSettingRequest) -> pb.TraceSettingResponse:
        changes = management_proto.trace_changes(request)
        return management_proto.trace_settings(trace.update(changes, request.model_name))

    return {
        "LogSettings": immediate(pb.LogSettingsRequest, log_settings, reading),
        "TraceSetting": immediate(pb.TraceSettingRequest, trace_setting, reading),
    }


def _repository(
    control: RepositoryControl, reading: Background, background: Background, listing: Background
) -> Mapping[str, Method]:
    """Return the RPCs of repository control. They block, and so run in the background.

    `listing` runs the index, which may have many clients at once.
    """

    def index(request: pb.RepositoryIndexRequest) -> pb.RepositoryIndexResponse:
        return management_proto.repository_index(
            row.fields
            for row in control.index(ready_only=request.ready, repository=request.repository_name)
        )

    def load(request: pb.RepositoryModelLoadRequest) -> pb.RepositoryModelLoadResponse:
        control.load(
            request.model_name,
            management_proto.load_parameters(request.parameters),
            repository=request.repository_name,
        )
        return pb.RepositoryModelLoadResponse()

    def unload(request: pb.RepositoryModelUnloadRequest) -> pb.RepositoryModelUnloadResponse:
        # A repository's name is rejected before anything else is checked.
        named = bool(request.repository_name)
        control.unload(
            request.model_name,
            unload_dependents=not named and management_proto.unload_dependents(request),
            repository=request.repository_name,
        )
        return pb.RepositoryModelUnloadResponse()

    return {
        "RepositoryIndex": blocking(pb.RepositoryIndexRequest, index, reading, listing),
        "RepositoryModelLoad": blocking(pb.RepositoryModelLoadRequest, load, reading, background),
        "RepositoryModelUnload": blocking(
            pb.RepositoryModelUnloadRequest, unload, reading, background
        ),
    }


def restricted(
    table: Mapping[str, Method], restrictions: Mapping[str, Restriction]
) -> Mapping[str, Method]:
    """Return the methods with the restrictions of their categories."""
    return {name: _restricted(name, method, restrictions) for name, method in table.items()}


def _restricted(name: str, method: Method, restrictions: Mapping[str, Restriction]) -> Method:
    restriction = restrictions.get(CATEGORY.get(name.rpartition("/")[2], ""))
    if restriction is None:
        return method
    key, value = f"{_METADATA_PREFIX}{restriction.key}", restriction.value

    def start(call: Call) -> CallHandler:
        if call.metadata(key.lower()) == value:
            return method.start(call)
        call.end(unavailable(f"This protocol is restricted, expecting header '{key}'"))
        return IGNORING

    return Method(start, streams=method.streams)
