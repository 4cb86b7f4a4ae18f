"""The shared memory endpoints. Everything here runs on the loop's thread."""

from __future__ import annotations

from collections.abc import Mapping

from reference_server.codecs import region_json
from reference_server.core.errors import invalid_arg
from reference_server.frontends.http import errors
from reference_server.frontends.http.handlers import Handler
from reference_server.frontends.http.request import Request
from reference_server.frontends.http.routes import Operation, Route
from reference_server.gateway.shared_memory import SharedMemory


def handlers(shared_memory: SharedMemory) -> Mapping[Operation, Handler]:
    """Who answers the operations on regions."""

    def system_status(request: Request, route: Route) -> None:
        regions = shared_memory.system_status(route.name)
        request.reply(errors.OK, [region_json.system_status(regions)])

    def system_register(request: Request, route: Route) -> None:
        _check_name(route, "system")
        given = region_json.system_registration(request.body)
        shared_memory.system_register(route.name, given.key, given.byte_size, given.offset)
        request.reply(errors.OK)

    def system_unregister(request: Request, route: Route) -> None:
        shared_memory.system_unregister(route.name)
        request.reply(errors.OK)

    def cuda_status(request: Request, route: Route) -> None:
        regions = shared_memory.cuda_status(route.name)
        request.reply(errors.OK, [region_json.cuda_status(regions)])

    def cuda_register(request: Request, route: Route) -> None:
        _check_name(route, "cuda")
        given = region_json.cuda_registration(request.body)
        shared_memory.cuda_register(route.name, given.raw_handle, given.device_id, given.byte_size)
        request.reply(errors.OK)

    def cuda_unregister(request: Request, route: Route) -> None:
        shared_memory.cuda_unregister(route.name)
        request.reply(errors.OK)

    return {
        Operation.SYSTEM_REGION_STATUS: system_status,
        Operation.SYSTEM_REGION_REGISTER: system_register,
        Operation.SYSTEM_REGION_UNREGISTER: system_unregister,
        Operation.CUDA_REGION_STATUS: cuda_status,
        Operation.CUDA_REGION_REGISTER: cuda_register,
        Operation.CUDA_REGION_UNREGISTER: cuda_unregister,
    }


def _check_name(route: Route, kind: str) -> None:
    if not route.name:
        raise invalid_arg(f"'region name' is necessary to register {kind} shared memory region")
