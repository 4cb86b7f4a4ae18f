"""Repository control as messages of Triton's gRPC service."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tritonclient.grpc.service_pb2 import (
    ModelRepositoryParameter,
    RepositoryIndexResponse,
    RepositoryModelUnloadRequest,
)

from reference_server.core.errors import invalid_arg
from reference_server.core.request import Parameter


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
