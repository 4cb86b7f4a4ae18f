"""Send requests to a server and return the changes of its statistics.

A play sends requests to `scripted` models: each request contains the Python code that answers it.
Nothing depends on a server's speed: a request is sent after the script has seen the effect of the
previous one, and gates, which are files, hold the executions that have to run at the same time.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import queue
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc as triton
from contract.casebook import get, post
from contract.wire import exchange
from google.protobuf import json_format
from support.servers import Server
from support.waiting import PATIENCE_SECONDS, eventually

_SETTLING_CALLS = 50
_SERIES = re.compile(
    r"(?m)^nv_inference_(request_success|request_failure|count|exec_count|pending_request_count)"
    r'{model="(\w+)",(?:reason="(\w+)",)?version="\d"} (\d+)$'
)

#: Values by model and by name of the counter.
Counts = dict[str, dict[str, int]]


class Play:
    """One script on one server without other clients; `gates` is an empty folder."""

    def __init__(self, server: Server, gates: Path) -> None:
        self.server = server
        self._folder = gates
        self._gates: set[str] = set()
        self._client = triton.InferenceServerClient(server.grpc)
        self._calls: dict[str, Any] = {}
        self._arrived: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
        #: The errors of answered requests by id; "" for success.
        self.answers: dict[str, str] = {}
        self._streams: dict[str, triton.InferenceServerClient] = {}

    # ------------------------------------------------------------------------------ what it sends

    def send(self, model: str, script: str, id: str = "", *, rows: int = 0, **settings: Any) -> str:
        """Send a request without waiting; the model gets `rows` rows, or no batch at all."""
        id = id or f"r{len(self._calls)}"
        self._calls[id] = self._client.async_infer(
            model, [scripted(script, rows)], self._note(id), request_id=id, **settings
        )
        return id

    def ask(self, model: str, script: str, **settings: Any) -> str:
        """Send a request, wait for the response, and return its error, if any."""
        id = self.send(model, script, **settings)
        self.answered(id)
        return self.answers[id]

    def stream(self, model: str, script: str, id: str, **settings: Any) -> None:
        """Send a request of a stream without waiting."""
        client = triton.InferenceServerClient(self.server.grpc)
        self._streams[id] = client
        self._calls[id] = None

        def arrived(result: Any, error: triton.InferenceServerException | None) -> None:
            if error is not None:
                self._arrived.put((id, error.message()))
            elif result.get_response().parameters["triton_final_response"].bool_param:
                self._arrived.put((id, ""))

        client.start_stream(arrived)
        client.async_stream_infer(
            model,
            [scripted(script, settings.pop("rows", 0))],
            request_id=id,
            enable_empty_final_response=True,
            **settings,
        )

    def http(self, path: str, body: object = None, method: str = "POST") -> int:
        """Send a request over HTTP and return the status."""
        connection = http.client.HTTPConnection(self.server.http, timeout=PATIENCE_SECONDS)
        with contextlib.closing(connection):
            content = body if isinstance(body, str) else json.dumps(body) if body else ""
            connection.request(method, path, content)
            reply = connection.getresponse()
            reply.read()
            return reply.status

    def cancel(self, id: str) -> None:
        """Cancel a request, and wait until the server has noticed.

        The server does not report it. A few threads process all inferences in the order of their
        queues, so they have seen the cancellation once they have answered later requests.
        """
        self._calls[id].cancel()
        self.answered(id)
        for _ in range(_SETTLING_CALLS):
            with contextlib.suppress(triton.InferenceServerException):
                self._client.infer("nobody", [])

    def hang_up(self, id: str) -> None:
        """Cancel a stream and all its requests."""
        self._streams[id].stop_stream(cancel_requests=True)

    # ------------------------------------------------------------------------------- what it sees

    def answered(self, *ids: str) -> None:
        """Wait until these requests have a response or an error."""
        wanted = set(ids or self._calls)
        while not wanted <= self.answers.keys():
            id, said = self._arrived.get(timeout=PATIENCE_SECONDS)
            self.answers.setdefault(id, said)

    def waits(self, model: str, count: int) -> None:
        """Wait until this number of the model's requests is pending."""
        self.until(lambda: pending(self.server).get(model), count)

    def until(self, read: Callable[[], object], wanted: object) -> None:
        """Wait until `read` returns the wanted value; fail if it does not."""
        found = eventually(read, wanted)
        assert found == wanted, f"{found}, not {wanted}"

    def gate(self, name: str) -> str:
        """Return script lines that report their start and then wait for the gate."""
        self._gates.add(name)
        return (
            f"import pathlib, time\npathlib.Path({str(self._begun(name))!r}).touch()\n"
            f"while not pathlib.Path({str(self._open(name))!r}).exists(): time.sleep(.005)\n"
        )

    def in_turn(self, *scripts: str) -> str:
        """Return a script that runs the first part at its first run, and so on."""
        return (
            f"import os\nturns = {str(self._folder / 'turns')!r}\n"
            "with open(turns, 'a') as file:\n  file.write('.')\n"
            f"exec({scripts!r}[os.path.getsize(turns) - 1])"
        )

    def begun(self, name: str) -> None:
        """Wait until a script has reached the gate."""
        self.until(self._begun(name).exists, True)

    def go(self, name: str) -> None:
        """Open a gate."""
        self._open(name).touch()

    def close(self) -> None:
        """Open all gates, end all requests and close the connections, also after a failure."""
        for name in self._gates:
            self.go(name)
        try:
            self.answered()
            self.until(lambda: any(pending(self.server).values()), False)
        finally:
            for id, client in self._streams.items():
                self.hang_up(id)
                client.close()
            self._client.close()

    def _begun(self, name: str) -> Path:
        return self._folder / f"{name}-begun"

    def _open(self, name: str) -> Path:
        return self._folder / f"{name}-go"

    def _note(self, id: str) -> Callable[..., None]:
        def note(result: object, error: triton.InferenceServerException | None) -> None:
            self._arrived.put((id, "" if error is None else error.message()))

        return note


def scripted(script: str, rows: int) -> triton.InferInput:
    shape = (rows, 1) if rows else (1,)
    given = triton.InferInput("script", shape, "BYTES")
    given.set_data_from_numpy(np.full(shape, script.encode(), dtype=object))
    return given


# ------------------------------------------------------------------------------- what is counted


def statistics(server: Server) -> dict[str, dict[str, Any]]:
    """Return the HTTP statistics of the loaded models."""
    reply = exchange(server.http, get("/v2/models/stats")).replies[0]
    return {found["name"]: found for found in json.loads(reply.body)["model_stats"]}


def told_over_grpc(server: Server) -> dict[str, dict[str, Any]]:
    """Return the gRPC statistics of the loaded models, in the form of HTTP."""
    with triton.InferenceServerClient(server.grpc) as client:
        message = client.get_inference_statistics()
    told = json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return {found["name"]: _in_numbers(found) for found in told["model_stats"]}


def _in_numbers(value: Any) -> Any:
    """Convert the 64-bit integers of Protobuf's JSON, which are strings, to numbers."""
    if isinstance(value, dict):
        return {
            key: inner if key in ("name", "version") else _in_numbers(inner)
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return [_in_numbers(inner) for inner in value]
    return int(value)


def counts(server: Server) -> Counts:
    """Return all counters that are not zero; check that statistics and metrics agree."""
    found = {
        name: {key: n for key, n in _counted(model).items() if n}
        for name, model in statistics(server).items()
    }
    for kind, model, reason, digits in _SERIES.findall(_page(server)):
        if int(digits) and model in found:
            found[model][f"{kind} {reason}".strip()] = int(digits)
    return found


def _counted(model: dict[str, Any]) -> dict[str, int]:
    counted = {name: model[name] for name in ("inference_count", "execution_count")}
    counted |= {name: item["count"] for name, item in model["inference_stats"].items()}
    for batch in model["batch_stats"]:
        size = batch["batch_size"]
        (executions,) = {part["count"] for name, part in batch.items() if name != "batch_size"}
        counted[f"batches of {size}"] = executions
    return counted


def pending(server: Server) -> dict[str, int]:
    """Return the number of pending requests by model."""
    found = _SERIES.findall(_page(server))
    return {model: int(n) for kind, model, _, n in found if kind == "pending_request_count"}


def why_not_ready(server: Server, model: str) -> str | None:
    """Return the reason in the repository index for a model that is not ready, or None."""
    reply = exchange(server.http, post("/v2/repository/index", b"")).replies[0]
    return {row["name"]: row.get("reason") for row in json.loads(reply.body)}[model]


def durations(server: Server) -> Counts:
    """Return the durations of the counters in nanoseconds, by the counters' names."""
    found = {}
    for name, model in statistics(server).items():
        found[name] = {part: item["ns"] for part, item in model["inference_stats"].items()}
    return found


def moved(before: Counts, after: Counts) -> Counts:
    """Return the differences of counters, without models that have none."""
    moves = {
        model: {
            name: after.get(model, {}).get(name, 0) - before.get(model, {}).get(name, 0)
            for name in {**before.get(model, {}), **after.get(model, {})}
        }
        for model in {**before, **after}
    }
    lean = {
        model: {name: n for name, n in sorted(changed.items()) if n}
        for model, changed in moves.items()
    }
    return {model: changed for model, changed in sorted(lean.items()) if changed}


def _page(server: Server) -> str:
    return exchange(server.metrics, get("/metrics")).replies[0].body.decode()
