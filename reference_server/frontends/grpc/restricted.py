"""Restricted protocols: methods that only those may call who send the right metadata."""

from __future__ import annotations

from collections.abc import Mapping

from reference_server.codecs.proto_wire import Data
from reference_server.core.errors import unavailable
from reference_server.frontends.grpc.calls import Call, Method, Running
from reference_server.options import Restriction

_PREFIX = "triton-grpc-protocol-"
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
#: The group that each method belongs to; `Check` is that of gRPC's own health service.
CATEGORY = {name: category for category, names in _CATEGORIES.items() for name in names}


def guarded(
    table: Mapping[str, Method], restrictions: Mapping[str, Restriction]
) -> Mapping[str, Method]:
    """The methods by their full names, each for those whom the restriction of its category lets in.

    `restrictions` are by category.
    """
    return {name: _guarded(name, method, restrictions) for name, method in table.items()}


def _guarded(name: str, method: Method, restrictions: Mapping[str, Restriction]) -> Method:
    restriction = restrictions.get(CATEGORY.get(name.rpartition("/")[2], ""))
    if restriction is None:
        return method
    key, value = f"{_PREFIX}{restriction.key}", restriction.value

    def start(call: Call) -> Running:
        if call.metadata(key.lower()) == value:
            return method.start(call)
        call.end(unavailable(f"This protocol is restricted, expecting header '{key}'"))
        return _Refused()

    return Method(start, streams=method.streams)


class _Refused:
    """A call that has been answered before it said anything."""

    def receive(self, message: Data) -> None:
        """It does not matter."""

    def half_close(self) -> None:
        """It does not matter."""

    def cancel(self) -> None:
        """It has ended already."""
