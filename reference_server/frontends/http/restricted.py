"""Restricted APIs: operations that only those may ask for who send the right header."""

from __future__ import annotations

from collections.abc import Mapping

from reference_server.frontends.http.request import Request
from reference_server.frontends.http.routes import Operation
from reference_server.options import Restriction

FORBIDDEN = b"403 Forbidden"

_CATEGORIES: dict[str, tuple[Operation, ...]] = {
    "health": (Operation.LIVE, Operation.READY, Operation.MODEL_READY),
    "metadata": (Operation.SERVER_METADATA, Operation.MODEL_METADATA),
    "inference": (Operation.INFER, Operation.GENERATE, Operation.GENERATE_STREAM),
    "shared-memory": (
        Operation.SYSTEM_REGION_STATUS,
        Operation.SYSTEM_REGION_REGISTER,
        Operation.SYSTEM_REGION_UNREGISTER,
        Operation.CUDA_REGION_STATUS,
        Operation.CUDA_REGION_REGISTER,
        Operation.CUDA_REGION_UNREGISTER,
    ),
    "model-config": (Operation.MODEL_CONFIG,),
    "model-repository": (
        Operation.REPOSITORY_INDEX,
        Operation.REPOSITORY_LOAD,
        Operation.REPOSITORY_UNLOAD,
    ),
    "statistics": (Operation.MODEL_STATISTICS, Operation.ALL_STATISTICS),
    "trace": (Operation.TRACE_SETTINGS,),
    "logging": (Operation.LOG_SETTINGS,),
}
CATEGORY = {
    operation: category for category, operations in _CATEGORIES.items() for operation in operations
}


class Gatekeeper:
    """Knows what each operation demands. `restrictions` are by category."""

    def __init__(self, restrictions: Mapping[str, Restriction]) -> None:
        self._demands = {
            operation: (restrictions[category].key.lower().encode(), restrictions[category])
            for operation, category in CATEGORY.items()
            if category in restrictions
        }

    def lets_in(self, request: Request, operation: Operation) -> bool:
        """True if the request may go on; otherwise it is answered."""
        demand = self._demands.get(operation)
        if demand is None:
            return True
        header, restriction = demand
        if request.header(header) == restriction.value:
            return True
        request.reply_error(
            FORBIDDEN,
            f"This API is restricted, expecting header '{restriction.key}'",
            as_json=False,
        )
        return False
