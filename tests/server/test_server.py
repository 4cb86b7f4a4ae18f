"""The composition root: the models are loaded before the ports open, and unloaded after."""

import asyncio
import errno
import logging
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
from server.support.configs import ensemble, step
from server.support.http import MemoryTransport, get, post
from server.support.model_folders import BROKEN, VECTOR, write_ensemble, write_model
from server.support.requests import PATIENCE_S

from reference_server.core.errors import Code, ServerError
from reference_server.core.profiles import NEWEST, V2_51
from reference_server.options import HttpOptions, MetricsOptions, ServerOptions
from reference_server.server import ExitTimeout, Server

CHAIN = ensemble(step("m", {"X": "I"}, {"Y": "mid"}), step("m", {"X": "mid"}, {"Y": "O"}))
BODY = b'{"inputs":[{"name":"I","datatype":"FP32","shape":[2],"data":[1,2]}]}'


HTTP, METRICS = 8000, 8002


@pytest.fixture(autouse=True)
def _closed():
    """After a timeout a server leaves a thread behind, which would log in the next test."""
    yield
    for thread in threading.enumerate():
        if thread.name == "close":
            thread.join(PATIENCE_S)


class Ports:
    """Ports in memory; reports when the HTTP port is open. `faulty` is in use."""

    def __init__(self, faulty=None):
        self.opened = asyncio.Event()
        self.factories = {}
        self.closed = []
        self._faulty = faulty

    async def create_server(self, factory, address, port, **more):
        if port == self._faulty:
            raise OSError(errno.EADDRINUSE, "in use")
        self.factories[port] = factory
        if port == HTTP:
            self.opened.set()
        return SimpleNamespace(close=lambda: self.closed.append(port))

    @property
    def are_closed(self):
        return sorted(self.closed) == sorted(self.factories)


class WaitableTransport(MemoryTransport):
    """A transport that reports writes, and its end to the protocol."""

    def __init__(self, connection):
        super().__init__()
        self.written = asyncio.Event()
        self._connection = connection

    def write(self, data):
        super().write(data)
        self.written.set()

    def close(self):
        if not self.is_closing():
            super().close()
            asyncio.get_running_loop().call_soon(self._connection.connection_lost, None)


def serving(options, scenario, *, faulty=None):
    """Run a server over ports in memory, and `scenario(server, ports)` once they are open."""

    async def run():
        ports = Ports(faulty)
        asyncio.get_running_loop().create_server = ports.create_server
        # Without gRPC, which has its own loop; the clients keep their connections open.
        server = Server(replace(options, grpc=None, exit_closes_idle=True))
        task = asyncio.ensure_future(server.serve())
        opened = asyncio.ensure_future(ports.opened.wait())
        await asyncio.wait([task, opened], return_when=asyncio.FIRST_COMPLETED)
        opened.cancel()
        if opened.cancelled() or not ports.opened.is_set():
            return await task
        try:
            return await scenario(server, ports)
        finally:
            server.stop()
            await task
            assert ports.are_closed

    return asyncio.run(run())


async def asked(ports, request, port=HTTP):
    """Send one request on its own connection; return the reply's bytes."""
    connection = ports.factories[port]()
    transport = WaitableTransport(connection)
    connection.connection_made(transport)
    connection.get_buffer(-1)[: len(request)] = request
    connection.buffer_updated(len(request))
    await transport.written.wait()
    return bytes(transport.sent)


def test_a_request_is_answered(tmp_path):
    write_model(tmp_path, "m")
    write_ensemble(tmp_path, "e", CHAIN)

    async def scenario(server, ports):
        return await asked(ports, post("/v2/models/e/infer", BODY))

    reply = serving(ServerOptions((tmp_path,)), scenario)
    assert reply.endswith(
        b'{"model_name":"e","model_version":"1","parameters":{"sequence_id":0,'
        b'"sequence_start":false,"sequence_end":false},'
        b'"outputs":[{"name":"O","datatype":"FP32","shape":[2],"data":[1.0,2.0]}]}'
    )


#: Counts its executions in its own metric.
COUNTING = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            self.family = pb_utils.MetricFamily("calls", "", pb_utils.MetricFamily.COUNTER)
            self.calls = self.family.Metric({"model": args["model_name"]})

        def execute(self, requests):
            self.calls.increment(len(requests))
            return [pb_utils.InferenceResponse([]) for _ in requests]
"""


def test_the_metrics_have_the_servers_and_the_models_counters(tmp_path):
    write_model(tmp_path, "m", source=COUNTING)

    async def scenario(server, ports):
        await asked(ports, post("/v2/models/m/infer", BODY.replace(b'"I"', b'"X"')))
        return await asked(ports, get("/metrics"), METRICS)

    page = serving(ServerOptions((tmp_path,)), scenario)
    assert b'\nnv_inference_count{model="m",version="1"} 1\n' in page
    assert b'\n# TYPE calls counter\ncalls{model="m"} 1\n# HELP nv_inference_pending' in page


#: Answers after the test allows it.
SLOW = """
    import threading

    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            self.folder = args["model_repository"]

        def execute(self, requests):
            open(self.folder + "/started", "x").close()
            threading.slow_model_of_this_test.wait(60)
            return [pb_utils.InferenceResponse([]) for _ in requests]
"""


def test_requests_in_flight_are_answered_before_it_ends(tmp_path, monkeypatch):
    write_model(tmp_path, "m", VECTOR, SLOW)
    go_on = threading.Event()
    monkeypatch.setattr(threading, "slow_model_of_this_test", go_on, raising=False)

    async def scenario(server, ports):
        request = post("/v2/models/m/infer", BODY.replace(b'"I"', b'"X"'))
        reply = asyncio.ensure_future(asked(ports, request))
        await asyncio.sleep(0)
        server.stop()
        await asyncio.sleep(0)
        go_on.set()
        return await reply

    assert serving(ServerOptions((tmp_path,)), scenario).startswith(b"HTTP/1.1 200 OK\r\n")


def test_the_shutdown_has_a_timeout(tmp_path, monkeypatch, caplog):
    write_model(tmp_path, "m", VECTOR, SLOW)
    go_on = threading.Event()
    monkeypatch.setattr(threading, "slow_model_of_this_test", go_on, raising=False)
    caplog.set_level(logging.INFO, "reference_server")

    async def scenario(server, ports):
        request = post("/v2/models/m/infer", BODY.replace(b'"I"', b'"X"'))
        reply = asyncio.ensure_future(asked(ports, request))
        await asyncio.sleep(0)
        server.stop()
        while not ports.are_closed:
            await asyncio.sleep(0)
        go_on.set()
        await reply

    with pytest.raises(ExitTimeout):
        serving(ServerOptions((tmp_path,), exit_timeout_s=0), scenario)
    assert "Timeout 0: Found 1 HTTP service connections" in caplog.messages


@pytest.mark.parametrize(
    ("http", "metrics", "said"),
    [("0.0.0.0", "0.0.0.0", ": HTTP 8000, metrics 8002."), ("127.0.0.1", "::", ": metrics 8002.")],
)
def test_a_start_warns_about_ports_that_other_machines_reach(tmp_path, caplog, http, metrics, said):
    write_model(tmp_path, "m")
    options = ServerOptions((tmp_path,), http=HttpOptions(http), metrics=MetricsOptions(metrics))

    async def scenario(server, ports):
        server.stop()

    with caplog.at_level(logging.WARNING, "reference_server"):
        serving(options, scenario)
    (warning,) = [text for text in caplog.messages if text.startswith("Open to all networks")]
    assert said in warning


@pytest.mark.parametrize(
    ("profile", "said"),
    [
        (
            NEWEST,
            ["Pages: live page http://localhost:8002/, request form http://[::1]:8000/try, "
             "API http://[::1]:8000/docs"],
        ),
        (V2_51, []),
    ],
)  # fmt: skip
def test_a_start_names_the_pages_for_browsers(tmp_path, caplog, profile, said):
    write_model(tmp_path, "m")
    options = ServerOptions((tmp_path,), http=HttpOptions("::1"), profile=profile)

    async def scenario(server, ports):
        server.stop()

    with caplog.at_level(logging.INFO, "reference_server"):
        serving(options, scenario)
    assert [text for text in caplog.messages if text.startswith("Pages:")] == said


@pytest.mark.parametrize("taken", [HTTP, METRICS])
def test_a_port_in_use_ends_the_start_and_unloads_the_models(tmp_path, caplog, taken):
    write_model(tmp_path, "m")
    with caplog.at_level(logging.INFO, "reference_server"), pytest.raises(ServerError) as caught:
        serving(ServerOptions((tmp_path,)), None, faulty=taken)
    assert caught.value.code is Code.UNAVAILABLE
    assert caught.value.message == f"Socket '0.0.0.0:{taken}' already in use "
    assert "successfully unloaded 'm' version 1" in caplog.messages


def test_a_model_that_fails_ends_a_strict_start_before_the_port(tmp_path, caplog):
    write_model(tmp_path, "m")
    write_model(tmp_path, "x", source=BROKEN)
    with (
        caplog.at_level(logging.INFO, "reference_server"),
        pytest.raises(ServerError, match="failed to load all models"),
    ):
        serving(ServerOptions((tmp_path,)), None)
    assert "successfully unloaded 'm' version 1" in caplog.messages
