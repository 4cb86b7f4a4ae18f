"""The ASGI application: the same replies as over the server's own port, as ASGI messages."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from server.support.model_folders import IDENTITY, VECTOR, write_model

from reference_server.asgi import Application, application

#: Sends `count` responses of a megabyte.
STREAMING = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            for number in range(int(x[0])):
                if request.is_cancelled():
                    break
                y = np.full(int(x[1]), number, np.float32)
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", y)]))
            with open(__file__ + ".sent", "a") as file:
                file.write(f"{number + 1}\\n")
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
DECOUPLED = VECTOR + "\nmodel_transaction_policy { decoupled: true }"
Message = dict[str, Any]


class Client:
    """One request of an ASGI server, and the application's messages."""

    def __init__(self, app: Application) -> None:
        self._app = app
        self.sent: list[Message] = []
        self.read = asyncio.Event()  # if set, `send` waits
        self.read.set()
        self.came = asyncio.Event()
        self.left = asyncio.Event()
        self.failure: Exception | None = None  # raised by `send`
        self.unread: list[Message] = []  # messages that the application has not received

    async def ask(
        self,
        method: str,
        path: str,
        *chunks: bytes | None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        url, _, query = path.partition("?")
        scope = {
            "type": "http",
            "method": method,
            "path": url,
            "raw_path": url.encode(),
            "query_string": query.encode(),
            "headers": [
                (name.lower().encode(), value.encode()) for name, value in (headers or {}).items()
            ],
        }
        last = len(chunks) - 1
        self.unread = [
            {"type": "http.request", "body": chunk, "more_body": index < last}
            for index, chunk in enumerate(chunks)
        ] or [{"type": "http.request"}]

        async def receive() -> Message:
            if self.unread and self.unread[0].get("body", b"") is not None:
                return self.unread.pop(0)
            await self.left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            if self.failure is not None:
                raise self.failure
            self.sent.append(message)
            self.came.set()
            await self.read.wait()

        await self._app(scope, receive, send)

    @property
    def status(self) -> int:
        status: int = self.sent[0]["status"]
        return status

    @property
    def headers(self) -> dict[bytes, bytes]:
        return dict(self.sent[0]["headers"])

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent[1:])


def within(app: Application, steps: Callable[[], Awaitable[None]]) -> list[Message]:
    """Run `steps` in the application's lifespan; return the lifespan's messages."""
    messages: list[Message] = []

    async def run() -> None:
        wanted: asyncio.Queue[Message] = asyncio.Queue()
        started = asyncio.Event()

        async def send(message: Message) -> None:
            messages.append(message)
            started.set()

        await wanted.put({"type": "lifespan.startup"})
        life = asyncio.ensure_future(app({"type": "lifespan"}, wanted.get, send))
        await started.wait()
        if messages[0]["type"] == "lifespan.startup.complete":
            await steps()
        await wanted.put({"type": "lifespan.shutdown"})
        await life

    asyncio.run(run())
    return messages


def opened(folder: Path, *options: str) -> Application:
    return application(["--log-error=false", f"--model-repository={folder}", *options])


INFER = json.dumps(
    {"inputs": [{"name": "X", "datatype": "FP32", "shape": [2], "data": [1.5, 2]}]}
).encode()


def test_requests_are_answered_within_the_lifespan(tmp_path):
    write_model(tmp_path, "m", VECTOR, IDENTITY)
    app = opened(tmp_path)
    ready, asked, plain, none = (Client(app) for _ in range(4))

    async def steps() -> None:
        await ready.ask("GET", "/v2/health/ready")
        await asked.ask("POST", "/v2/models/m/infer", INFER[:20], INFER[20:])
        await plain.ask("GET", "/v2/models/m/infer")
        await none.ask("GET", "/v2/models/none/ready")

    messages = within(app, steps)
    assert [message["type"] for message in messages] == [
        "lifespan.startup.complete",
        "lifespan.shutdown.complete",
    ]
    assert (ready.status, ready.body) == (200, b"")
    assert asked.status == 200
    assert asked.headers[b"content-type"] == b"application/json"
    assert int(asked.headers[b"content-length"]) == len(asked.body)
    assert json.loads(asked.body)["outputs"][0]["data"] == [1.5, 2.0]
    assert plain.status == 405
    assert plain.headers[b"content-type"] == b"text/plain"
    assert none.status == 400


def within_limits(folder: Path, pieces: int, *options: str, **headers: str) -> tuple[Client, int]:
    """Send a body in pieces of 64 KiB; return the client, and the number of accepted pieces."""
    app = opened(folder, *options)
    client = Client(app)
    chunks = [b" " * (1 << 16)] * pieces
    taken = 0

    async def steps() -> None:
        nonlocal taken
        await client.ask("POST", "/v2/models/m/infer", *chunks, headers=headers)
        taken = pieces - len(client.unread)

    within(app, steps)
    return client, taken


def test_bodies_share_the_memory_budget_of_the_servers_own_port(tmp_path):
    write_model(tmp_path, "m", VECTOR, IDENTITY)
    compressed = {"content-encoding": "gzip"}  # so that any size may be valid
    client, taken = within_limits(tmp_path, 100, "--connection-memory-mib=1", **compressed)
    assert (client.status, taken) == (400, 17)
    assert b"--connection-memory-mib" in client.body
    assert client.headers[b"connection"] == b"close"
    client, taken = within_limits(tmp_path, 10, "--connection-memory-mib=1", **compressed)
    assert (client.status, taken) == (200, 10)  # as in Triton, what is no gzip stream is empty


@pytest.mark.parametrize("chunks", [(b"{", None, b"}"), (None,)], ids=["pauses", "never starts"])
def test_a_body_that_is_late_ends_the_request(tmp_path, chunks):
    write_model(tmp_path, "m", VECTOR, IDENTITY)
    app = opened(tmp_path, "--connection-body-secs=0.01")
    client = Client(app)
    within(app, lambda: client.ask("POST", "/v2/models/m/infer", *chunks))
    assert (client.status, client.body) == (400, b'{"error":"body timeout"}')


def test_an_unreadable_repository_fails_the_start(tmp_path):
    messages = within(opened(tmp_path / "nowhere"), asyncio.Event().wait)
    assert messages[0]["type"] == "lifespan.startup.failed"
    assert "failed to stat file" in messages[0]["message"]


STREAM = "/v2/models/m/generate_stream"


def test_events_are_sent_individually(tmp_path):
    write_model(tmp_path, "m", DECOUPLED, STREAMING)
    app = opened(tmp_path)
    client = Client(app)
    within(app, lambda: client.ask("POST", STREAM, b'{"X": [3, 1]}'))
    assert client.headers[b"content-type"].startswith(b"text/event-stream")
    events = [line for line in client.body.split(b"\n\n") if line]
    assert [json.loads(event[5:])["Y"] for event in events] == [0.0, 1.0, 2.0]
    assert client.sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}


def test_a_client_that_does_not_read_stops_only_its_model(tmp_path):
    folder = write_model(tmp_path, "m", DECOUPLED, STREAMING)
    write_model(tmp_path, "other", VECTOR, IDENTITY)
    app = opened(tmp_path)
    slow, quick = Client(app), Client(app)

    async def steps() -> None:
        slow.read.clear()
        asked = asyncio.ensure_future(slow.ask("POST", STREAM, b'{"X": [200, 100000]}'))
        await slow.came.wait()
        await quick.ask("POST", "/v2/models/other/infer", INFER)
        slow.left.set()
        slow.read.set()
        await asked

    within(app, steps)
    assert quick.status == 200
    # Each response has some 400 kB as text: the model waited, and stopped after the disconnect.
    assert int((folder / "1" / "model.py.sent").read_text()) < 200


def test_a_request_with_an_incomplete_body_is_dropped(tmp_path):
    write_model(tmp_path, "m", VECTOR, IDENTITY)
    app = opened(tmp_path)
    sent: list[Message] = []

    async def steps() -> None:
        received = [
            {"type": "http.request", "body": INFER[:9], "more_body": True},
            {"type": "http.disconnect"},
        ]

        async def receive() -> Message:
            return received.pop(0)

        async def send(message: Message) -> None:
            sent.append(message)

        path = "/v2/models/m/infer"
        await app({"type": "http", "method": "POST", "path": path, "headers": []}, receive, send)

    within(app, steps)
    assert sent == []


@pytest.mark.parametrize(
    ("text", "raised"),
    [("unable to perform operation: the handler is closed", None), ("wrong", RuntimeError)],
)
@pytest.mark.parametrize("body", [[INFER], [b"{", None]], ids=["reply", "rejection"])
def test_a_connection_that_the_asgi_server_takes_for_open_is_a_disconnect(
    tmp_path, text, raised, body
):
    write_model(tmp_path, "m", VECTOR, IDENTITY)
    client = Client(opened(tmp_path, "--connection-body-secs=0.01"))
    client.failure = RuntimeError(text)
    results: list[object] = []

    async def steps() -> None:
        asked = client.ask("POST", "/v2/models/m/infer", *body)
        results.extend(await asyncio.gather(asked, return_exceptions=True))

    within(client._app, steps)
    assert [type(each) for each in results] == [raised or type(None)]


def test_metrics_are_at_the_same_port_unless_switched_off(tmp_path):
    write_model(tmp_path, "m", VECTOR, IDENTITY)
    for options, status in ((), 200), (("--allow-metrics=false",), 404):
        app = opened(tmp_path, *options)
        client = Client(app)
        within(app, lambda client=client: client.ask("GET", "/metrics"))
        assert client.status == status
