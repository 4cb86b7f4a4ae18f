"""The status of another server for the live page, by the v2 protocol and its metrics port.

Only reading operations are used: metadata, repository index, statistics, configurations.
"""

from __future__ import annotations

import http.client
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from reference_server.core.errors import unavailable
from reference_server.gateway.status import RUNTIME_FAMILIES, RuntimeMetrics, by_model

_PENDING = "nv_inference_pending_request_count"
_LINE = re.compile(rf"^({'|'.join((_PENDING, *RUNTIME_FAMILIES))})\{{(.*)\}} (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")
_PARTS = {
    "queue": "queue",
    "input": "compute_input",
    "infer": "compute_infer",
    "output": "compute_output",
}
_TIMEOUT_S = 5.0
_MOST_BYTES = 64 << 20
#: A status and the numbers of instances are reused for this time: several pages may be open.
_STATUS_S = 1.0
_CONFIG_S = 30.0


class RemoteStatus:
    """Reads the status of a server; `server` and `metrics` are HOST:PORT. Not thread-safe."""

    def __init__(self, server: str, metrics: str) -> None:
        self._server = server
        self._metrics = metrics
        self._read_at = -_STATUS_S
        self._status: Mapping[str, Any] = {}
        self._instances: dict[tuple[str, str], tuple[float, int]] = {}

    def read(self) -> Mapping[str, Any]:
        """Return the status, as `StatusGateway.read`. Blocks.

        Raises:
            ServerError: UNAVAILABLE if the server does not answer.
        """
        now = time.monotonic()
        if now - self._read_at >= _STATUS_S:
            self._status = self._read_all(now)
            self._read_at = now
        return self._status

    def _read_all(self, now: float) -> Mapping[str, Any]:
        metadata = self._call("GET", "/v2")
        statistics = self._call("GET", "/v2/models/stats")["model_stats"]
        served = {(each["name"], each["version"]): each for each in statistics}
        samples, note = self._samples()
        runtimes = by_model(each for each in samples if each[0] != _PENDING)
        pending = {
            (labels["model"], labels["version"]): value
            for family, labels, value in samples
            if family == _PENDING
        }
        return {
            "title": f"Models of {self._server}",
            "server": f"{metadata['name']} {metadata['version']}{note}",
            "at_ms": now * 1000,
            "http_port": None,
            "log": False,
            "models": [
                self._entry(each, served, pending, runtimes, now)
                for each in self._call("POST", "/v2/repository/index")
            ],
        }

    def _entry(
        self,
        entry: Mapping[str, str],
        served: Mapping[tuple[str, str], Mapping[str, Any]],
        pending: Mapping[tuple[str, str], float],
        runtimes: Mapping[tuple[str, str], RuntimeMetrics],
        now: float,
    ) -> Mapping[str, Any]:
        of = entry["name"], entry.get("version", "")
        shown: dict[str, Any] = {
            "name": of[0],
            "version": of[1] or None,
            "state": entry.get("state", "not loaded"),
            "reason": entry.get("reason", ""),
        }
        statistics = served.get(of)
        if statistics is None:
            return shown
        own = runtimes[of].shown() if of in runtimes else _NOTHING
        return shown | {
            "instances": self._instances_of(of, now),
            "pending": pending.get(of),
            "counts": _counts(statistics["inference_stats"]),
            "batches": _batches(statistics["batch_stats"]),
            **own,
        }

    def _instances_of(self, of: tuple[str, str], now: float) -> int:
        read_at, count = self._instances.get(of, (-_CONFIG_S, 0))
        if now - read_at >= _CONFIG_S:
            config = self._call("GET", f"/v2/models/{of[0]}/versions/{of[1]}/config")
            groups = config.get("instance_group", [])
            count = sum(group["count"] * max(1, len(group.get("gpus", []))) for group in groups)
            self._instances[of] = now, count
        return count

    def _samples(self) -> tuple[Sequence[tuple[str, Mapping[str, str], float]], str]:
        """Return the known series, and a note if the metrics cannot be read."""
        try:
            page = _fetch(self._metrics, "GET", "/metrics").decode(errors="replace")
        except OSError:
            return [], f", without metrics: {self._metrics} does not answer"
        return list(_parsed(page)), ""

    def _call(self, method: str, path: str) -> Any:  # noqa: ANN401 - any JSON value
        try:
            return orjson.loads(_fetch(self._server, method, path))
        except (OSError, orjson.JSONDecodeError) as error:
            raise unavailable(f"{method} {path} of {self._server}: {error}") from error


_NOTHING: Mapping[str, Any] = {"memory_bytes": 0, "padding": None, "gears": []}


def _fetch(address: str, method: str, path: str) -> bytes:
    connection = http.client.HTTPConnection(address, timeout=_TIMEOUT_S)
    try:
        connection.request(method, path)
        reply = connection.getresponse()
        body = reply.read(_MOST_BYTES)
    except http.client.HTTPException as error:
        raise OSError(f"not an HTTP reply: {error!r}") from error
    finally:
        connection.close()
    if reply.status != http.client.OK:
        raise OSError(f"{reply.status} {reply.reason} {body[:200].decode(errors='replace')}")
    return body


def _parsed(page: str) -> Iterator[tuple[str, Mapping[str, str], float]]:
    for family, labels, value in _LINE.findall(page):
        read = {name: _ESCAPED.sub(_unescaped, text) for name, text in _LABEL.findall(labels)}
        yield family, read, float(value)


def _unescaped(found: re.Match[str]) -> str:
    return "\n" if found[1] == "n" else found[1]


def _counts(statistics: Mapping[str, Mapping[str, int]]) -> Mapping[str, int]:
    return {
        "success": statistics["success"]["count"],
        "fail": statistics["fail"]["count"],
        **{name: statistics[part]["ns"] for name, part in _PARTS.items()},
    }


def _batches(statistics: Sequence[Mapping[str, Any]]) -> Sequence[tuple[int, int]]:
    sizes = ((each["batch_size"], each["compute_infer"]["count"]) for each in statistics)
    return sorted(sizes)
