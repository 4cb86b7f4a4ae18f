"""URL paths: the operation that a path names, its model and version."""

from __future__ import annotations

import enum
import functools
import re
from dataclasses import dataclass

from reference_server.core.request import LATEST

_MAX_VERSION = 2**63 - 1


class Operation(enum.Enum):
    """An operation over HTTP: its category for `--http-restricted-api`, and its methods.

    Category and subject together are unique.
    """

    # Each request looks its operation up three times, and Enum's hash is a Python function.
    __hash__ = object.__hash__

    LIVE = ("health", "live", "GET")
    READY = ("health", "ready", "GET")
    MODEL_READY = ("health", "model ready", "GET")
    SERVER_METADATA = ("metadata", "server", "GET")
    OPENAPI = ("metadata", "openapi", "GET")
    MODEL_METADATA = ("metadata", "model", "GET")
    MODEL_CONFIG = ("model-config", "", "GET")
    MODEL_STATISTICS = ("statistics", "model", "GET")
    ALL_STATISTICS = ("statistics", "all", "GET")
    INFER = ("inference", "infer", "POST")
    GENERATE = ("inference", "generate", "POST")
    GENERATE_STREAM = ("inference", "generate stream", "POST")
    LOG_SETTINGS = ("logging", "", "POST", "GET")
    TRACE_SETTINGS = ("trace", "", "POST", "GET")
    SYSTEM_REGION_STATUS = ("shared-memory", "system status", "GET")
    SYSTEM_REGION_REGISTER = ("shared-memory", "system register", "POST")
    SYSTEM_REGION_UNREGISTER = ("shared-memory", "system unregister", "POST")
    CUDA_REGION_STATUS = ("shared-memory", "cuda status", "GET")
    CUDA_REGION_REGISTER = ("shared-memory", "cuda register", "POST")
    CUDA_REGION_UNREGISTER = ("shared-memory", "cuda unregister", "POST")
    REPOSITORY_INDEX = ("model-repository", "index", "POST")
    REPOSITORY_LOAD = ("model-repository", "load", "POST")
    REPOSITORY_UNLOAD = ("model-repository", "unload", "POST")

    def __init__(self, category: str, subject: str, *methods: str) -> None:
        self.category = category
        self.methods = frozenset(methods)


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
    """Return the version in a URL, and an error text, which is empty if the version is valid."""
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
