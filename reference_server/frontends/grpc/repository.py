"""The RPCs of repository control. They block, so the work is done beside the loop."""

from __future__ import annotations

from collections.abc import Mapping

from tritonclient.grpc import service_pb2 as pb

from reference_server.codecs import proto_repository
from reference_server.frontends.aside import Aside
from reference_server.frontends.grpc.calls import Method, delegated
from reference_server.gateway.control import RepositoryControl


def methods(control: RepositoryControl, aside: Aside) -> Mapping[str, Method]:
    """The methods, by their names."""

    def index(request: pb.RepositoryIndexRequest) -> pb.RepositoryIndexResponse:
        return proto_repository.repository_index(
            (row.name, row.version, row.state.value if row.state else None, row.reason)
            for row in control.index(ready_only=request.ready, repository=request.repository_name)
        )

    def load(request: pb.RepositoryModelLoadRequest) -> pb.RepositoryModelLoadResponse:
        control.load(
            request.model_name,
            proto_repository.load_parameters(request.parameters),
            repository=request.repository_name,
        )
        return pb.RepositoryModelLoadResponse()

    def unload(request: pb.RepositoryModelUnloadRequest) -> pb.RepositoryModelUnloadResponse:
        # A repository's name is refused before anything else is looked at.
        named = bool(request.repository_name)
        control.unload(
            request.model_name,
            unload_dependents=not named and proto_repository.unload_dependents(request),
            repository=request.repository_name,
        )
        return pb.RepositoryModelUnloadResponse()

    return {
        "RepositoryIndex": delegated(pb.RepositoryIndexRequest, index, aside),
        "RepositoryModelLoad": delegated(pb.RepositoryModelLoadRequest, load, aside),
        "RepositoryModelUnload": delegated(pb.RepositoryModelUnloadRequest, unload, aside),
    }
