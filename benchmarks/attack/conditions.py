"""Attacks on servers with TLS, traces, a response cache or full disks, and attacks by web pages.

The functions whose names start with `with_` are context managers of a server's flags.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import http.client
import http.server
import json
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest import mock

from contract.wire import read_reply
from support.browser import open_browser
from support.http2 import ConnectionEnded, RawConnection, message

from benchmarks.attack import expect
from benchmarks.attack.clients import binary_input, inference
from benchmarks.attack.ground import IMAGE, SERVICE, Ground, connect, models
from benchmarks.attack.mutators import mutated_requests
from benchmarks.attack.restarts import Load, as_sent, service
from tests.support.servers import Flag

Flags = dict[str, Flag]

EXPLICIT: Flags = {"model_control_mode": "explicit", "load_model": "*"}

_RECOVERY_S = 30.0


def request(address: str, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
    """Return the status and the body of one request over HTTP."""
    connection = http.client.HTTPConnection(address, timeout=_RECOVERY_S)
    try:
        connection.request(method, path, body)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


# -- TLS

_STALLED = 300


@contextlib.contextmanager
def with_tls() -> Iterator[Flags]:
    """A self-signed certificate for the gRPC port."""
    with tempfile.TemporaryDirectory(prefix="attack-") as folder:
        key, certificate = f"{folder}/key", f"{folder}/crt"
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=x"]
        subprocess.run(
            [*command, "-keyout", key, "-out", certificate], check=True, capture_output=True
        )
        yield {"grpc_use_ssl": True, "grpc_server_key": key, "grpc_server_cert": certificate}


def tls_stalled(ground: Ground) -> str:
    """TLS handshakes that send nothing, a part or junk, and then wait."""
    starts = (b"", b"\x16\x03\x01\x02\x00\x01", b"\x16\x03\x01\xff\xff", b"PRI * HTTP/2.0\r\n\r\n")
    closed = 0
    with contextlib.ExitStack() as kept:
        clients = []
        for number in range(_STALLED):
            clients.append(kept.enter_context(connect(ground.server.grpc)))
            with contextlib.suppress(OSError):
                clients[-1].sendall(starts[number % len(starts)])
        time.sleep(ground.seconds)
        for client in clients:
            client.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                try:
                    closed += client.recv(1 << 16) is not None
                except ConnectionError:
                    closed += 1
    return f"{_STALLED} clients, {closed} answered or closed"


# -- gRPC content types

_TYPES = (
    *("application/grpc", "application/grpc+proto", "application/grpc;a=b", "application/grpc+x"),
    *("application/grpc-web", "application/grpc-web+proto", "application/grpcx", "text/plain"),
    *("application/json", "APPLICATION/GRPC", "", None, "application/grpc+" + "x" * 8000),
)


def content_types(ground: Ground) -> str:
    """Calls with gRPC, gRPC-Web, other and missing content types."""
    counts = Counter[str]()
    for _ in ground.over():
        counts.clear()
        for given in _TYPES:
            with RawConnection(ground.server.grpc, seconds=_RECOVERY_S) as client:
                try:
                    client.request(1, f"{SERVICE}ServerLive", message(b""), content_type=given)
                    answer = client.answer(1)
                except (ConnectionEnded, OSError):
                    counts["closed"] += 1
                    continue
            if answer.reset is not None:
                counts["reset"] += 1
            elif answer.trailers.get("grpc-status") == "0":
                counts["served"] += 1
            else:
                counts["refused"] += 1
    return ", ".join(f"{count} {what}" for what, count in sorted(counts.items()))


# -- the response cache

CACHE: Flags = {"cache_config": f"local,size={1 << 22}"}


@contextlib.contextmanager
def with_cached() -> Iterator[Path]:
    """A repository whose models `texts` and `wide` use the response cache."""
    with models() as folder:
        for name in ("texts", "wide"):
            with (folder / name / "config.pbtxt").open("a") as config:
                config.write("\nresponse_cache { enable: true }\n")
        yield folder


def cache_keys(ground: Ground) -> str:
    """Requests that differ only where one element or tensor ends and the next begins."""
    count = 0
    with connect(ground.server.http) as client, client.makefile("rb") as stream:
        for _ in ground.over():
            letters = "".join(ground.dice.choices("ab\0", k=6))
            cuts = sorted(ground.dice.choices(range(7), k=2))
            texts = [letters[: cuts[0]], letters[cuts[0] : cuts[1]], letters[cuts[1] :]]
            numbers = [float(ground.dice.randrange(3)) for _ in range(ground.dice.randrange(1, 5))]
            cases: Sequence[tuple[str, str, list[object]]] = (
                ("texts", "BYTES", [*texts[: ground.dice.randrange(1, 4)]]),
                ("wide", "FP32", [*numbers]),
            )
            for model, datatype, data in cases:
                tensor = {"name": "INPUT", "datatype": datatype, "shape": [len(data)], "data": data}
                client.sendall(inference(model, tensor))
                reply = read_reply(stream)
                found = json.loads(reply.body)["outputs"][0]
                right = found["data"] == data and found["shape"] == [len(data)]
                expect(right, f"{model} answered {found} to {tensor}")
                count += 1
    return f"{count:,} right responses"


# -- the collector of traces


@contextlib.contextmanager
def with_silent_collector() -> Iterator[Flags]:
    """A collector that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        yield _traced(listener.getsockname()[1])


@contextlib.contextmanager
def with_dead_collector() -> Iterator[Flags]:
    """A collector's port without a listener."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    yield _traced(port)


def _traced(port: int) -> Flags:
    url = f"opentelemetry,url=http://127.0.0.1:{port}/v1/traces"
    return {"trace_config": ["mode=opentelemetry", "rate=1", "level=TIMESTAMPS", url]}


def collector_silent(ground: Ground) -> str:
    """Traces of all requests for a collector that accepts them and never answers."""
    return mutated_requests(ground)


def collector_dead(ground: Ground) -> str:
    """Traces of all requests for a collector's port without a listener."""
    return mutated_requests(ground)


# -- full file systems (need permission to mount)

_CLONE_NEWNS = 0x20000
_SIZE = 64 << 20


@contextlib.contextmanager
def _mounted(folder: str) -> Iterator[None]:
    """Mount an empty file system at `folder`, for this thread and its later child processes."""
    libc = ctypes.CDLL(None, use_errno=True)
    before = os.open("/proc/thread-self/ns/mnt", os.O_RDONLY)
    try:
        if libc.unshare(_CLONE_NEWNS):
            raise OSError(ctypes.get_errno(), "a file system cannot be mounted")
        subprocess.run(["mount", "--make-rprivate", "/"], check=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={_SIZE}", "tmpfs", folder]
        subprocess.run(command, check=True)
        yield
        libc.setns(before, _CLONE_NEWNS)
    finally:
        os.close(before)


@contextlib.contextmanager
def with_own_shm() -> Iterator[Flags]:
    """A small /dev/shm."""
    with _mounted("/dev/shm"):
        yield EXPLICIT


@contextlib.contextmanager
def with_own_disk() -> Iterator[Flags]:
    """A small file system for the log, the traces and temporary files."""
    with (
        tempfile.TemporaryDirectory(prefix="attack-") as folder,
        _mounted(folder),
        mock.patch.dict(os.environ, TMPDIR=folder, ATTACKED=folder),
    ):
        trace = (f"triton,file={folder}/trace", "rate=1", "level=TIMESTAMPS", "log_frequency=1")
        log: Flags = {"log_file": f"{folder}/log", "log_verbose": 1, "trace_config": [*trace]}
        yield {**EXPLICIT, **log}


@contextlib.contextmanager
def _filled(folder: Path) -> Iterator[None]:
    """Fill the file system at `folder` until the block ends."""
    path = folder / "filling"
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while file.write(bytes(1 << 16)):
            pass
    try:
        yield
    finally:
        path.unlink()


def shm_full(ground: Ground) -> str:
    """Large requests and loads while /dev/shm is full."""
    with _filled(Path("/dev/shm")):
        counts = _use(ground)
    return _recovered(ground, counts)


def disk_filled(ground: Ground) -> str:
    """Requests, traces, log lines and loads with files while their file system is full."""
    folder = Path(os.environ["ATTACKED"])
    with _filled(folder):
        counts = _use(ground)
    outcome = _recovered(ground, counts)
    written = (folder / "log").stat().st_size
    request(ground.server.http, "GET", "/v2/models/no_model")
    time.sleep(0.5)
    grown = (folder / "log").stat().st_size > written
    expect(grown, "the log is not continued although there is room again")
    return outcome


def _use(ground: Ground) -> Counter[str]:
    """Send large requests, and load a model with a file of 8 MiB; count the statuses."""
    counts = Counter[str]()
    code = (ground.repository / "identity_0" / "1" / "model.py").read_bytes()
    files = {
        "config": json.dumps({"backend": "python", "input": [_TENSOR], "output": [_RESULT]}),
        "file:1/model.py": base64.b64encode(code).decode(),
        "file:1/weights": base64.b64encode(bytes(8 << 20)).decode(),
    }
    body = json.dumps({"parameters": files}).encode()
    floats = 1 << 21
    for _ in ground.over():
        with connect(ground.server.http) as client:
            client.sendall(inference("wide", binary_input(floats), bytes(4 * floats)))
            with contextlib.suppress(OSError):
                counts[f"inference {client.recv(1 << 16)[9:12].decode()}"] += 1
        with contextlib.suppress(OSError, http.client.HTTPException):
            path = "/v2/repository/models/extra/load"
            counts[f"load {request(ground.server.http, 'POST', path, body)[0]}"] += 1
        with contextlib.suppress(OSError, http.client.HTTPException):
            path = "/v2/repository/models/texts/load"
            counts[f"reload {request(ground.server.http, 'POST', path)[0]}"] += 1
    return counts


_TENSOR = {"name": "INPUT", "data_type": "TYPE_FP32", "dims": [4]}
_RESULT = {**_TENSOR, "name": "OUTPUT"}


def _recovered(ground: Ground, counts: Counter[str]) -> str:
    """Load and use a model again. Raise Defect if that fails."""
    outcome = ", ".join(f"{count} {what}" for what, count in sorted(counts.items()))
    request(ground.server.http, "POST", "/v2/repository/models/extra/unload")
    status, body = request(ground.server.http, "POST", "/v2/repository/models/texts/load")
    expect(status == 200, f"{outcome}; no load although there is room again: {body[:200]!r}")
    return outcome


# -- the device service


def device_service_killed(ground: Ground) -> str:
    """Repeated SIGKILL for the device service of a busy model."""
    image = as_sent(IMAGE)
    load = Load(ground.server.http, "image_service", image)
    killed = 0
    with load.running():
        for _ in ground.over():
            with contextlib.suppress(SystemExit, ProcessLookupError):  # it is being restarted
                os.kill(service(), signal.SIGKILL)
                killed += 1
            time.sleep(0.5)
        before = load.counts["answered"]
        end = time.monotonic() + _RECOVERY_S
        while load.counts["answered"] == before:
            expect(time.monotonic() < end, f"no response {_RECOVERY_S:.0f} s after the last kill")
            time.sleep(0.1)
    expect(not load.counts["lost"], f"{load.counts['lost']} responses wrong or missing")
    return f"{killed} killed; {load.counts['answered']:,} answered, {load.counts['refused']:,} not"


# -- web pages

_MODEL = "identity_0"
_SENT = """
const to = path => "http://127.0.0.1:%(http)s" + path, post = {method: "POST", mode: "no-cors"};
const text = {...post, headers: {"Content-Type": "text/plain"}, body: "{}"};
const all = [
  fetch(to("/v2/repository/models/%(model)s/unload"), {...post, body: "{}"}),
  fetch(to("/v2/repository/models/%(model)s/unload"), text),
  fetch(to("/v2/logging"), {...text, body: '{"log_verbose_level": 3}'}),
  fetch("http://localhost:%(http)s/v2/repository/models/%(model)s/unload", post),
  fetch("http://127.0.0.1:%(grpc)s/inference.GRPCInferenceService/ServerLive", text),
];
navigator.sendBeacon(to("/v2/repository/models/%(model)s/unload"), "{}");
const form = Object.assign(document.createElement("form"), {
  method: "POST", action: to("/v2/repository/models/%(model)s/unload"), target: "frame"});
document.body.append(Object.assign(document.createElement("iframe"), {name: "frame"}), form);
form.submit();
Promise.allSettled(all).then(done => done.length)
"""


def web_pages(ground: Ground) -> str:
    """A page of another site in a browser, before and after its name is rebound to this machine."""
    address = ground.server.http
    port, grpc, metrics = (
        one.rpartition(":")[2] for one in (address, ground.server.grpc, ground.server.metrics)
    )
    handler = http.server.SimpleHTTPRequestHandler
    handler.log_message = lambda *_: None  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory(prefix="attack-") as folder:
        Path(folder, "index.html").write_text("<!doctype html><body></body>")
        with http.server.ThreadingHTTPServer(
            ("127.0.0.1", 0), lambda *given: handler(*given, directory=folder)
        ) as site:
            threading.Thread(target=site.serve_forever, daemon=True).start()
            with open_browser(Path(folder)) as page:
                page.open(f"http://evil.example:{site.server_port}/")
                page.evaluate(_SENT % {"http": port, "grpc": grpc, "model": _MODEL})
                page.wait_for("frames.length == 1 && document.readyState == 'complete'")
                time.sleep(1)  # for the beacon and the form
                read = []
                for url in (f"{port}/v2/models/{_MODEL}", f"{metrics}/status.json"):
                    page.open(f"http://evil.example:{url}")
                    read.append(page.text[:200])
                page.open("about:blank")
            site.shutdown()
    index = json.loads(request(address, "POST", "/v2/repository/index")[1])
    states = {row["name"]: row.get("state") for row in index}
    expect(states[_MODEL] == "READY", "a page of another site has unloaded a model")
    verbose = json.loads(request(address, "GET", "/v2/logging")[1])["log_verbose_level"]
    expect(not verbose, "a page of another site has changed the log's settings")
    expect("versions" not in read[0], f"a rebound page reads {read[0]!r}")
    expect("refused" in read[1] or ground.side == "triton", f"a rebound page reads {read[1]!r}")
    return "no effect"
