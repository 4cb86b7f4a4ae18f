"""The composition root: models first, then the port; and the way back."""

import asyncio
import errno
import json
import logging
import sys
import threading

import pytest
from server.support.configs import ensemble, step
from server.support.http import MemoryTransport, get, post
from server.support.model_folders import BROKEN, VECTOR, write_ensemble, write_model

from reference_server.core.errors import Code, ServerError
from reference_server.options import ServerOptions
from reference_server.server import Server

CHAIN = ensemble(step("m", {"X": "I"}, {"Y": "mid"}), step("m", {"X": "mid"}, {"Y": "O"}))
BODY = b'{"inputs":[{"name":"I","datatype":"FP32","shape":[2],"data":[1,2]}]}'


HANGING = """
    import released_by_test

    class TritonPythonModel:
        def finalize(self):
            released_by_test.wait()
"""


class Port:
    """A port in memory, that tells when it is open."""

    def __init__(self, fault=None):
        self.opened = asyncio.Event()
        self.is_closed = False
        self._fault = fault

    async def create_server(self, factory, address, port, **more):
        if self._fault is not None:
            raise self._fault
        self.connect = factory
        self.opened.set()
        return self

    def close(self):
        self.is_closed = True


class WaitableTransport(MemoryTransport):
    """A transport that tells when something was written, and reports its end to the protocol."""

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


def serving(options, scenario, *, fault=None):
    """Run a server over a port in memory, and `scenario(server, port)` once it is open."""

    async def run():
        port = Port(fault)
        asyncio.get_running_loop().create_server = port.create_server
        server = Server(options)
        task = asyncio.ensure_future(server.serve())
        opened = asyncio.ensure_future(port.opened.wait())
        await asyncio.wait([task, opened], return_when=asyncio.FIRST_COMPLETED)
        opened.cancel()
        if opened.cancelled() or not port.opened.is_set():
            return await task
        try:
            return await scenario(server, port)
        finally:
            server.stop()
            await task
            assert port.is_closed

    return asyncio.run(run())


async def asked(port, request):
    """Send one request over a connection of its own; returns the reply's bytes."""
    connection = port.connect()
    transport = WaitableTransport(connection)
    connection.connection_made(transport)
    connection.get_buffer(-1)[: len(request)] = request
    connection.buffer_updated(len(request))
    await transport.written.wait()
    return bytes(transport.sent)


def test_a_request_goes_all_the_way(tmp_path):
    write_model(tmp_path, "m")
    write_ensemble(tmp_path, "e", CHAIN)

    async def scenario(server, port):
        return await asked(port, post("/v2/models/e/infer", BODY))

    reply = serving(ServerOptions((tmp_path,)), scenario)
    assert reply.endswith(
        b'{"model_name":"e","model_version":"1","parameters":{"sequence_id":0,'
        b'"sequence_start":false,"sequence_end":false},'
        b'"outputs":[{"name":"O","datatype":"FP32","shape":[2],"data":[1.0,2.0]}]}'
    )


def test_each_step_is_counted_in_its_own_model(tmp_path):
    write_model(tmp_path, "m")
    write_ensemble(tmp_path, "e", CHAIN)

    async def scenario(server, port):
        await asked(port, post("/v2/models/e/infer", BODY))
        return await asked(port, get("/v2/models/stats"))

    reply = serving(ServerOptions((tmp_path,)), scenario)
    counted = json.loads(reply.partition(b"\r\n\r\n")[2])["model_stats"]
    assert {entry["name"]: entry["inference_count"] for entry in counted} == {"e": 1, "m": 2}


#: Answers only after the test has let it go on.
SLOW = """
    import threading

    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            self.folder = args["model_repository"]

        def execute(self, requests):
            open(self.folder + "/started", "x").close()
            threading.slow_model_of_this_test.wait(20)
            return [pb_utils.InferenceResponse([]) for _ in requests]
"""


def test_requests_in_flight_are_answered_before_it_ends(tmp_path, monkeypatch):
    write_model(tmp_path, "m", VECTOR, SLOW)
    go_on = threading.Event()
    monkeypatch.setattr(threading, "slow_model_of_this_test", go_on, raising=False)

    async def scenario(server, port):
        request = post("/v2/models/m/infer", BODY.replace(b'"I"', b'"X"'))
        reply = asyncio.ensure_future(asked(port, request))
        await asyncio.sleep(0)
        server.stop()
        await asyncio.sleep(0)
        go_on.set()
        return await reply

    assert serving(ServerOptions((tmp_path,)), scenario).startswith(b"HTTP/1.1 200 OK\r\n")


def test_it_does_not_wait_longer_than_it_may_for_requests(tmp_path, monkeypatch, caplog):
    write_model(tmp_path, "m", VECTOR, SLOW)
    go_on = threading.Event()
    monkeypatch.setattr(threading, "slow_model_of_this_test", go_on, raising=False)

    async def scenario(server, port):
        request = post("/v2/models/m/infer", BODY.replace(b'"I"', b'"X"'))
        reply = asyncio.ensure_future(asked(port, request))
        await asyncio.sleep(0)
        server.stop()
        while not port.is_closed:
            await asyncio.sleep(0)
        go_on.set()  # the models are closed in any case, and that does wait
        await reply

    serving(ServerOptions((tmp_path,), exit_timeout_s=0), scenario)
    assert "Exit timeout of 0 s expired with requests in flight" in caplog.messages


def test_a_port_that_is_taken_ends_the_start_and_the_models(tmp_path, caplog):
    write_model(tmp_path, "m")
    fault = OSError(errno.EADDRINUSE, "in use")
    with (
        caplog.at_level(logging.INFO, "reference_server"),
        pytest.raises(ServerError) as caught,
    ):
        serving(ServerOptions((tmp_path,)), None, fault=fault)
    assert caught.value.code is Code.UNAVAILABLE
    assert caught.value.message == "Socket '0.0.0.0:8000' already in use "
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


def test_the_table_tells_what_became_of_each_model(tmp_path, caplog):
    write_model(tmp_path, "good", VECTOR + "version_policy { all { } }", versions=(1, 10))
    write_model(tmp_path, "typo", "max_batch_sise: 8")

    async def nothing(server, port):
        return None

    with caplog.at_level(logging.INFO, "reference_server"):
        serving(ServerOptions((tmp_path,), exit_on_error=False), nothing)
    (table,) = [record for record in caplog.records if getattr(record, "verbatim", False)]
    rows = [line.split("|")[1:4] for line in table.getMessage().splitlines() if "|" in line]
    shown = [[cell.strip() for cell in row] for row in rows]
    assert shown[:3] == [
        ["Model", "Version", "Status"],
        ["good", "1", "READY"],
        ["good", "10", "READY"],
    ]
    assert shown[3][:2] == ["typo", "-"]
    assert shown[3][2].startswith("UNAVAILABLE: Internal: failed to read text proto from")


def test_a_model_that_hangs_at_the_end_does_not_keep_the_server(tmp_path, monkeypatch, caplog):
    released = threading.Event()
    monkeypatch.setitem(sys.modules, "released_by_test", released)
    write_model(tmp_path, "m", source=HANGING)

    async def scenario(server, port):
        return None

    try:
        serving(ServerOptions((tmp_path,), exit_timeout_s=0), scenario)
    finally:
        released.set()
    assert "Exit timeout expired. Exiting immediately." in caplog.messages
