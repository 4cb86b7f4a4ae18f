"""The table of all RPCs: what each answers, whatever carries its bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tritonclient.grpc import service_pb2 as pb

from reference_server.codecs import proto_models
from reference_server.frontends.aside import Aside
from reference_server.frontends.grpc.calls import Method, deliberated, immediate
from reference_server.gateway.gateway import Gateway

_SERVICE = "/inference.GRPCInferenceService/"
_HEALTH_CHECK = "/grpc.health.v1.Health/Check"
#: grpc.health.v1.HealthCheckResponse with the status SERVING or NOT_SERVING.
_SERVING, _NOT_SERVING = b"\x08\x01", b"\x08\x02"


def table(gateway: Gateway, aside: Aside, *subjects: Mapping[str, Method]) -> Mapping[str, Method]:
    """The methods, by their full names (`/package.Service/Method`).

    `aside` runs what blocks; `subjects` are the tables of the other method modules.
    """
    methods: dict[str, Method] = {}
    for subject in (_CoreMethods(gateway, aside).table(), *subjects):
        methods.update((_SERVICE + name, method) for name, method in subject.items())
    # A health request is one string, the name of a service, which Triton does not look at.
    methods[_HEALTH_CHECK] = immediate(
        pb.SystemSharedMemoryStatusRequest,
        lambda request: _SERVING if gateway.ready() else _NOT_SERVING,
    )
    return methods


class _CoreMethods:
    """Health, metadata, configuration and statistics."""

    def __init__(self, gateway: Gateway, aside: Aside) -> None:
        self._gateway = gateway
        self._aside = aside

    def table(self) -> Mapping[str, Method]:
        """The methods, by their names."""
        return {
            "ServerLive": immediate(pb.ServerLiveRequest, self._live),
            "ServerReady": immediate(pb.ServerReadyRequest, self._ready),
            "ModelReady": deliberated(pb.ModelReadyRequest, self._model_ready, self._aside),
            "ServerMetadata": immediate(pb.ServerMetadataRequest, self._server_metadata),
            "ModelMetadata": immediate(pb.ModelMetadataRequest, self._model_metadata),
            "ModelConfig": immediate(pb.ModelConfigRequest, self._model_config),
            "ModelStatistics": immediate(pb.ModelStatisticsRequest, self._statistics),
        }

    def _live(self, request: pb.ServerLiveRequest) -> pb.ServerLiveResponse:
        return pb.ServerLiveResponse(live=self._gateway.live())

    def _ready(self, request: pb.ServerReadyRequest) -> pb.ServerReadyResponse:
        return pb.ServerReadyResponse(ready=self._gateway.ready())

    def _model_ready(
        self, request: pb.ModelReadyRequest
    ) -> pb.ModelReadyResponse | Callable[[], pb.ModelReadyResponse]:
        version = proto_models.model_version(request.version)
        questions = self._gateway.model_ready(request.name, version)
        if not questions:
            return pb.ModelReadyResponse(ready=questions is not None)
        return lambda: pb.ModelReadyResponse(ready=all(ask() for ask in questions))

    def _server_metadata(self, request: pb.ServerMetadataRequest) -> pb.ServerMetadataResponse:
        return proto_models.server_metadata(self._gateway.server_metadata())

    def _model_metadata(self, request: pb.ModelMetadataRequest) -> pb.ModelMetadataResponse:
        version = proto_models.model_version(request.version)
        return proto_models.model_metadata(self._gateway.model_metadata(request.name, version))

    def _model_config(self, request: pb.ModelConfigRequest) -> pb.ModelConfigResponse:
        version = proto_models.model_version(request.version)
        return proto_models.model_config(self._gateway.find(request.name, version).config.proto)

    def _statistics(self, request: pb.ModelStatisticsRequest) -> pb.ModelStatisticsResponse:
        version = proto_models.model_version(request.version)
        return proto_models.statistics(self._gateway.statistics(request.name, version))
