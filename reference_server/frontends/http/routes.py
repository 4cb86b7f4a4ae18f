"""URL paths: the operation that a path names, its model and version."""

from __future__ import annotations

import enum
import functools
import re
from dataclasses import dataclass

from reference_server.core.request import LATEST

_MAX_VERSION = 2**63 - 1


class Operation(enum.Enum):
    """An operation over HTTP: its method, its subject, and other accepted methods."""

    # Each request looks its operation up three times, and Enum's hash is a Python function.
    __hash__ = object.__hash__

    LIVE = ("GET", "live")
    READY = ("GET", "ready")
    SERVER_METADATA = ("GET", "metadata")
    OPENAPI = ("GET", "openapi")
    MODEL_METADATA = ("GET", "model metadata")
    MODEL_READY = ("GET", "model ready")
    MODEL_CONFIG = ("GET", "model config")
    MODEL_STATISTICS = ("GET", "model statistics")
    ALL_STATISTICS = ("GET", "statistics")
    INFER = ("POST", "infer")
    GENERATE = ("POST", "generate")
    GENERATE_STREAM = ("POST", "generate stream")
    LOG_SETTINGS = ("POST", "log settings", "GET")
    TRACE_SETTINGS = ("POST", "trace settings", "GET")
    SYSTEM_REGION_STATUS = ("GET", "system region status")
    SYSTEM_REGION_REGISTER = ("POST", "system region register")
    SYSTEM_REGION_UNREGISTER = ("POST", "system region unregister")
    CUDA_REGION_STATUS = ("GET", "cuda region status")
    CUDA_REGION_REGISTER = ("POST", "cuda region register")
    CUDA_REGION_UNREGISTER = ("POST", "cuda region unregister")
    REPOSITORY_INDEX = ("POST", "repository index")
    REPOSITORY_LOAD = ("POST", "repository load")
    REPOSITORY_UNLOAD = ("POST", "repository unload")

    def __init__(self, method: str, subject: str, *more: str) -> None:
        self.method = method
        self.methods = frozenset((method, *more))


_CATEGORIES: dict[str, tuple[Operation, ...]] = {
    "health": (Operation.LIVE, Operation.READY, Operation.MODEL_READY),
    "metadata": (Operation.SERVER_METADATA, Operation.OPENAPI, Operation.MODEL_METADATA),
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
#: The category of each operation, for `--http-restricted-api`.
CATEGORY = {
    operation: category for category, operations in _CATEGORIES.items() for operation in operations
}


@dataclass(frozen=True, slots=True)
class Route:
    """An operation with its model, or with the `name` of a region or repository.

    `fault` is the error text if the version in the URL is invalid.
    """

    operation: Operation
    model: str = ""
    version: int = LATEST
    name: str = ""
    fault: str = ""


_FIXED = {
    "/v2": Operation.SERVER_METADATA,
    "/v2/openapi.json": Operation.OPENAPI,
    "/v2/health/live": Operation.LIVE,
    "/v2/health/ready": Operation.READY,
    "/v2/models/stats": Operation.ALL_STATISTICS,
    "/v2/logging": Operation.LOG_SETTINGS,
    "/v2/trace/setting": Operation.TRACE_SETTINGS,
}
_ORIGIN = re.compile(r"^http://[^/]*")
_MODEL = re.compile(
    r"/v2/models/(?P<model>[^/]+)(?:/versions/(?P<version>[0-9]+))?"
    r"(?:/(?P<verb>infer|ready|config|stats|generate|generate_stream|trace/setting))?"
)
_VERBS = {
    None: Operation.MODEL_METADATA,
    "infer": Operation.INFER,
    "ready": Operation.MODEL_READY,
    "config": Operation.MODEL_CONFIG,
    "stats": Operation.MODEL_STATISTICS,
    "generate": Operation.GENERATE,
    "generate_stream": Operation.GENERATE_STREAM,
    "trace/setting": Operation.TRACE_SETTINGS,
}
_REGION = re.compile(
    r"/v2/(?P<kind>system|cuda)sharedmemory(?:/region/(?P<name>[^/]+))?"
    r"/(?P<verb>status|register|unregister)"
)
_REPOSITORY = re.compile(
    r"/v2/repository(?:/(?P<name>[^/]+))?/(?:index|models/(?P<model>[^/]+)/(?P<verb>load|unload))"
)


def path_of(url: bytes) -> str:
    """Return the path of a request target without the query; for an absolute URL, its path.

    Percent-encoding is not decoded, as in Triton.
    """
    return _ORIGIN.sub("", url.partition(b"?")[0].decode("latin-1"))


# Clients use few URLs, each many times.
@functools.lru_cache(maxsize=1024)
def match(url: bytes) -> Route | None:
    """Return the route of a request target, or None."""
    path = path_of(url)
    fixed = _FIXED.get(path)
    if fixed is not None:
        return Route(fixed)
    found = _MODEL.fullmatch(path)
    if found is not None:
        if found["verb"] == "trace/setting" and found["version"]:
            return None
        version, fault = _version(found["version"])
        return Route(_VERBS[found["verb"]], found["model"], version, fault=fault)
    found = _REGION.fullmatch(path)
    if found is not None:
        operation = Operation[f"{found['kind']}_region_{found['verb']}".upper()]
        return Route(operation, name=found["name"] or "")
    found = _REPOSITORY.fullmatch(path)
    if found is not None:
        operation = Operation[f"repository_{found['verb'] or 'index'}".upper()]
        return Route(operation, found["model"] or "", name=found["name"] or "")
    return None


def _version(text: str | None) -> tuple[int, str]:
    """Parse a version in a URL. Return it, and an error text if it is out of range."""
    if text is None:
        return LATEST, ""
    digits = text.lstrip("0") or "0"
    number = int(digits[:20])  # 20 digits are out of range in any case
    if number > _MAX_VERSION:
        return LATEST, (
            f"failed to get model version from specified version string '{text}' "
            "(details: stol), version should be an integral value > 0"
        )
    return number, ""
