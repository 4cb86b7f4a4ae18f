"""A service that is hard pressed, and clients that press it: it stays, and others go on."""

import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest
from runtime.engines.conformance_engine import token_batch
from runtime.support.graphs import ENCODER
from runtime.support.services import TESTS, ClientProcess, held_service, patience, wait_for_end
from runtime.support.threads import Beside
from support.waiting import until

from ge_runtime.engines.artifact import Artifact
from ge_runtime.errors import OutOfMemory, RuntimeFault, ServiceFault
from ge_runtime.npu.service import channel as channels
from ge_runtime.npu.service import server, session
from ge_runtime.npu.service.backend import ServiceBackend
from ge_runtime.npu.service.channel import PeerGone
from ge_runtime.npu.service.protocol import pack_run

pytestmark = pytest.mark.brute_force

NO_MORE = 3
"""A limit for descriptors below which all are taken: what is open stays open."""


@pytest.fixture
def backend(services):
    backend = ServiceBackend("cpu", "neighbour")
    yield backend
    backend.close()


@pytest.fixture
def engine(backend, version_dir):
    artifact = Artifact(version_dir(ENCODER) / "model.onnx", "onnxruntime", "")
    return backend.open([artifact], threads=1, outputs=["embedding"])


def check(engine):
    inputs, expected = token_batch(2, 3)
    results = engine.run(inputs, {"embedding": np.empty((2, 4), np.float32)})
    np.testing.assert_allclose(results["embedding"], expected, rtol=1e-5)


@contextmanager
def limited(pid, what, most):
    """Set a resource limit of another process within the context."""
    soft, hard = resource.prlimit(pid, what)
    resource.prlimit(pid, what, (most, hard))
    try:
        yield
    finally:
        resource.prlimit(pid, what, (soft, hard))


def test_process_with_too_many_connections_keeps_no_other_out(services, monkeypatch, caplog):
    monkeypatch.setattr(server, "_MOST_OF_ONE", 3)
    with held_service(services.path):
        mine = [services.greet("held", role="observer")[0] for _ in range(3)]
        with pytest.raises(ServiceFault) as raised:
            ServiceBackend("held", "one more")
        why = f"found 3 connections of process {os.getpid()} already, expected fewer"
        assert str(raised.value) == f"the device service refuses: {why}"
        refused = f"a connection of pid {os.getpid()}, user {os.geteuid()} is refused: {why}"
        assert refused in caplog.messages
        other = "from runtime.support.services import Services; import sys; "
        other += "print(Services(sys.argv[1]).stats('held')['device'])"
        paths = os.pathsep.join(str(TESTS / part) for part in (".", "../plugin", "../simulator"))
        done = subprocess.run(
            [sys.executable, "-c", other, str(services.path)],
            env={**os.environ, "PYTHONPATH": paths},
            capture_output=True,
            check=True,
        )
        assert done.stdout == b"held\n"
        mine.pop().close()
        until(lambda: admitted(services), "a place that is free again")
        for channel in mine:
            channel.close()


def admitted(services):
    try:
        services.greet("held", role="observer")[0].close()
    except (PeerGone, ServiceFault):
        return False
    return True


def test_service_is_full_at_some_time(services, monkeypatch):
    monkeypatch.setattr(server, "_MOST_CONNECTIONS", 2)
    with held_service(services.path):
        mine = [services.greet("held", role="observer")[0] for _ in range(2)]
        with pytest.raises(ServiceFault, match="refuses: found 2 connections already, expected"):
            ServiceBackend("held", "one more")
        for channel in mine:
            channel.close()


def test_connection_without_a_thread_is_refused_and_the_next_is_served(
    services, monkeypatch, caplog
):
    begin = threading.Thread.start

    def start(thread):
        if thread.name.startswith("pid "):
            raise RuntimeError("can't start new thread")
        begin(thread)

    with held_service(services.path):
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", start)
            with pytest.raises(PeerGone):
                services.greet("held", role="observer")
        assert "a connection is refused: can't start new thread" in caplog.messages
        services.greet("held", role="observer")[0].close()


def test_client_that_reads_nothing_is_left(services, monkeypatch, tmp_path):
    monkeypatch.setattr(channels, "_SEND_S", 0.05)
    model = tmp_path / "model.om"
    model.write_bytes(b"compiled")
    with held_service(services.path) as (_, server):
        backend = ServiceBackend("held", "deaf")
        engine = backend.open([Artifact(model, "om", "")], threads=1, outputs=["y"])
        channel = engine._executions._channel

        def shout():
            while True:
                channel.send(pack_run(1, 1.0, b"nonsense"))

        with pytest.raises(PeerGone):
            Beside(shout).result()
        backend.close()
        until(lambda: len(server.state.clients()) == 0, "its leave")


def test_a_service_without_descriptors_accepts_no_connection_and_continues(
    services, engine, version_dir
):
    pid = services.pid()
    model = version_dir(ENCODER) / "model.onnx"
    check(engine)
    with ExitStack() as stack:
        with limited(pid, resource.RLIMIT_NOFILE, NO_MORE):
            client = stack.enter_context(ClientProcess(model))
            check(engine)
            until(lambda: "can be accepted: [Errno 24]" in log(services), "the reason")
            check(engine)
        assert client.service() == pid
        assert client.leave() == 0


def test_memory_that_the_service_has_no_descriptor_for_is_not_had(services, backend, engine):
    check(engine)
    with limited(services.pid(), resource.RLIMIT_NOFILE, NO_MORE):
        with pytest.raises(OutOfMemory, match=r"1,000 bytes wanted"):
            backend.memory.allocate("inputs", 1000)
        check(engine)
    assert "have open (ulimit -n)" in log(services)
    backend.memory.allocate("inputs", 1000)
    assert not backend.lost


def test_results_without_memory_in_the_service_fail_only_their_execution(services, backend, engine):
    inputs, expected = token_batch(2, 3)
    engine.run(inputs, {"embedding": None})
    with limited(services.pid(), resource.RLIMIT_FSIZE, 0):
        with pytest.raises(OutOfMemory, match=r"a file of 32 bytes cannot be created: .*large"):
            engine.run(inputs, {"embedding": None})
        check(engine)
    np.testing.assert_allclose(engine.run(inputs, {"embedding": None})["embedding"], expected, 1e-5)
    assert not backend.lost


def test_message_that_the_client_has_no_memory_for_is_not_sent(backend, engine):
    shapes = [{"input_ids": (1, size), "attention_mask": (1, 1)} for size in range(1, 2000)]
    check(engine)
    with limited(os.getpid(), resource.RLIMIT_FSIZE, 0):
        with pytest.raises(
            OutOfMemory, match=r"a file for a message of .* cannot be created: .*large"
        ):
            engine.bind(shapes, backend.memory)
        check(engine)
    engine.bind(shapes, backend.memory)
    check(engine)


def test_results_without_a_descriptor_in_the_client_fail_only_their_execution(backend, engine):
    inputs, expected = token_batch(2, 3)
    engine.run(inputs, {"embedding": None})
    with limited(os.getpid(), resource.RLIMIT_NOFILE, NO_MORE), pytest.raises(OutOfMemory):
        engine.run(inputs, {"embedding": None})
    results = engine.run(inputs, {"embedding": None})
    np.testing.assert_allclose(results["embedding"], expected, rtol=1e-5)
    assert not backend.lost


def test_a_full_disk_for_the_log_does_no_harm(services, engine):
    pid = services.pid()
    with limited(pid, resource.RLIMIT_FSIZE, (services.path / "cpu.log").stat().st_size):
        backend = ServiceBackend("cpu", "unheard of")
        assert "unheard of" not in log(services)
        backend.close()
        check(engine)
    ServiceBackend("cpu", "heard of").close()
    assert " heard of (pid" in log(services)
    assert services.pid() == pid


def test_clients_continue_after_the_folder_was_removed(services, engine, backend):
    first = services.pid()
    shutil.rmtree(services.path)
    check(engine)
    other = ServiceBackend("cpu", "newcomer")
    assert other.pid not in (first, None)
    assert backend.pid == first
    check(engine)
    assert services.pid() == other.pid
    other.close()
    backend.close()
    os.kill(first, signal.SIGTERM)  # its socket has been removed
    wait_for_end(first)


def test_a_model_that_fails_to_open_is_logged_with_its_client(services, backend, tmp_path):
    path = tmp_path / "encoder" / "1" / "model.onnx"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"no graph")
    with pytest.raises(RuntimeFault):
        backend.open([Artifact(path, "onnxruntime", "")], threads=1, outputs=["y"])
    assert f"neighbour (pid {os.getpid()}): 'open' failed: {path}: onnxruntime" in log(services)


def test_log_names_client_and_model_in_each_line(services, backend, engine, version_dir):
    who, model = f"neighbour (pid {os.getpid()})", version_dir(ENCODER) / "model.onnx"
    shown = "/".join(model.parts[-3:])
    engine._executions._channel.send(b"nonsense")
    until(lambda: "nonsense" not in log(services) and "is closed" in log(services), "the line")
    backend.close()
    until(lambda: f"{who} has disconnected" in log(services), "its leave")
    lines = [line.split(" ", 3)[3] for line in log(services).splitlines()][1:]
    assert lines[:2] == [f"{who} has connected", lines[1]]
    assert lines[1].startswith(f"{who} has opened {shown}, content ")
    assert lines[2].startswith(f"a connection of {who} for {shown} is closed: found ")
    assert lines[3:] == [f"{who} has disconnected"]


def test_client_of_long_silence_is_left(services, monkeypatch, caplog):
    monkeypatch.setattr(session, "_HELLO_S", 0.0)
    with held_service(services.path):
        channel = services.connect("held")
        message, _ = channel.receive_json(patience())
        assert message == {"refused": "no message received for 0 s"}
        channel.close()
    assert f"a connection of pid {os.getpid()} is closed: no message received" in caplog.text


def log(services):
    return (services.path / "cpu.log").read_text()
