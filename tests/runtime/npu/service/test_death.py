"""Processes that die, hang or fork, for real: what stays behind, and what comes back."""

import contextlib
import gc
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from runtime.engines.conformance_engine import token_batch
from runtime.support.configs import encoder_config
from runtime.support.graphs import ENCODER, PIXELS, encode, write
from runtime.support.services import (
    QUICK,
    ClientProcess,
    descriptors_of,
    nobody_starts_another,
    stop,
    wait_for_end,
)
from runtime.support.threads import Beside
from support.waiting import until

from ge_runtime import EngineLost, Runtime
from ge_runtime.engines.artifact import Artifact
from ge_runtime.errors import RuntimeFault, ServiceFault
from ge_runtime.npu.service import connection, launcher, reconnecting_client
from ge_runtime.npu.service.backend import ServiceBackend
from ge_runtime.npu.service.connection import Heartbeat
from ge_runtime.npu.service.launcher import RuntimeFolder
from ge_runtime.npu.service.protocol import Timeouts
from ge_runtime.npu.service.reconnecting_client import WakeEvent

pytestmark = pytest.mark.brute_force

CONFIG = encoder_config(
    {"placement": "service", "cost": "launch_us=100, element_ns=100, element2_ns=0"}
)


def request(*row):
    return {"input_ids": np.array([row]), "lengths": np.array([[len(row)]], np.int32)}


def arenas_of(pid):
    """Return the number of client files that a process has open or mapped."""
    files = 0
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it is closed while we look
            files += str(link.readlink()).startswith("/memfd:ge_runtime")
    return files + Path(f"/proc/{pid}/maps").read_text().count("/memfd:ge_runtime")


@pytest.fixture
def runtime(services, version_dir):
    runtime = Runtime.open(version_dir(ENCODER), CONFIG, instance_name="encoder_0")
    yield runtime
    runtime.close()


def test_the_resources_of_a_killed_client_are_released(services, runtime, version_dir):
    (answer,) = runtime.infer([request(1, 2)])
    pid = services.pid()
    before, arenas = descriptors_of(pid), arenas_of(pid)
    with ClientProcess(version_dir(ENCODER) / "model.onnx") as client:
        assert client.service() == pid
        assert arenas_of(pid) > arenas
        os.kill(client.pid, signal.SIGKILL)
        until(lambda: len(services.stats()["clients"]) == 1, "the end of the killed client")
    until(lambda: descriptors_of(pid) <= before, "the end of its connections")
    until(lambda: arenas_of(pid) == arenas, "the end of its arenas")
    (left,) = services.stats()["clients"]
    assert left["name"] == "encoder_0"
    (model,) = services.stats()["models"]
    assert model["clients"] == 1
    assert "/dev/shm" not in Path(f"/proc/{pid}/maps").read_text()
    (again,) = runtime.infer([request(1, 2)])
    np.testing.assert_array_equal(again["embedding"], answer["embedding"])


def test_killed_service_fails_requests_at_once_and_is_replaced(services, runtime):
    pid = services.pid()
    (before,) = runtime.infer([request(3, 4)])
    with nobody_starts_another():
        os.kill(pid, signal.SIGKILL)
        wait_for_end(pid)
        until(lambda: not runtime.is_ready(), "the runtime's notice")
        (answer,) = runtime.infer([request(3, 4)])
        assert isinstance(answer, EngineLost)
        text = str(answer)
        assert text.startswith(f"the device service of cpu (pid {pid}) is lost: ")
        assert "it is being restarted; its log is " in text
    until(runtime.is_ready, "the next service")
    assert services.pid() != pid
    (after,) = runtime.infer([request(3, 4)])
    np.testing.assert_array_equal(after["embedding"], before["embedding"])
    np.testing.assert_allclose(after["embedding"], encode([[3, 4]]), rtol=1e-5)
    assert {entry for entry in services.names() if entry.endswith(".sock")} == {"cpu.sock"}


def test_next_service_is_not_started_before_its_time(services, monkeypatch):
    pauses = []

    class Watched(WakeEvent):
        def wait(self, seconds, channel=None):
            if channel is None:
                rings = bool(select.select([self._wake], [], [], 0)[0])
                pauses.append((seconds, rings))
            return super().wait(seconds, channel)

    monkeypatch.setattr(reconnecting_client, "WakeEvent", Watched)
    backend = ServiceBackend("cpu", "client", timeouts=Timeouts(retry_s=3600.0))
    os.kill(backend.pid, signal.SIGKILL)
    until(lambda: pauses, "the notice")
    assert pauses == [(3600.0, False)]
    backend.close()


def test_several_clients_come_back_to_one_service(services, version_dir):
    runtimes = [
        Runtime.open(version_dir(ENCODER), CONFIG, instance_name=f"encoder_{number}")
        for number in range(3)
    ]
    services.kill(*runtimes)
    until(lambda: all(runtime.is_ready() for runtime in runtimes), "the next service")
    stats = services.stats()
    assert [model["clients"] for model in stats["models"]] == [3]
    for runtime in runtimes:
        (answer,) = runtime.infer([request(2)])
        np.testing.assert_allclose(answer["embedding"], encode([[2]]), rtol=1e-5)
        runtime.close()


def test_runtime_that_is_closed_while_there_is_no_service_leaves_nothing(services, version_dir):
    gc.collect()
    before = descriptors_of(os.getpid())
    open_and_close_without_service(services, version_dir(ENCODER))
    gc.collect()
    until(lambda: descriptors_of(os.getpid()) <= before, "the end of ours")


def open_and_close_without_service(services, folder):
    runtime = Runtime.open(folder, CONFIG, instance_name="encoder_0")
    pid = services.pid()
    with nobody_starts_another():
        os.kill(pid, signal.SIGKILL)
        wait_for_end(pid)
        until(lambda: not runtime.is_ready(), "the notice")
        runtime.close()


def test_open_and_close_leave_no_descriptor_on_either_side(services, runtime, version_dir):
    pid = services.pid()
    ours, theirs = descriptors_of(os.getpid()), descriptors_of(pid)
    for number in range(3):
        other = Runtime.open(version_dir(ENCODER), CONFIG, instance_name=f"other_{number}")
        other.infer([request(1)])
        other.close()
        del other
    gc.collect()
    until(lambda: descriptors_of(pid) <= theirs, "the end of connections")
    until(lambda: descriptors_of(os.getpid()) <= ours, "the end of ours")


def test_service_that_hangs_is_ended_and_replaced(services, version_dir, hang):
    backend = ServiceBackend("cpu", "client", timeouts=QUICK)
    artifact = Artifact(version_dir(ENCODER) / "model.onnx", "onnxruntime", "")
    engine = backend.open([artifact], threads=1, outputs=["embedding"])
    inputs, expected = token_batch(2, 3)
    pid = backend.pid
    hang(pid)
    with pytest.raises(EngineLost, match=r"is lost: .*it is being restarted"):
        engine.run(inputs, {"embedding": None})
    wait_for_end(pid)
    until(lambda: not engine.lost, "the next service")
    results = engine.run(inputs, {"embedding": None})
    np.testing.assert_allclose(results["embedding"], expected, rtol=1e-5)
    backend.close()


def test_load_that_meets_the_death_of_a_service_goes_on_with_the_next(services, version_dir):
    backend = ServiceBackend("cpu", "client", timeouts=Timeouts(retry_s=3600.0))
    artifact = Artifact(version_dir(ENCODER) / "model.onnx", "onnxruntime", "")
    inputs, expected = token_batch(2, 3)
    shapes = {name: array.shape for name, array in inputs.items()}
    seen = {backend.pid}

    def kill():
        seen.add(backend.pid)
        os.kill(backend.pid, signal.SIGKILL)
        wait_for_end(backend.pid)

    kill()
    engine = backend.open([artifact], threads=1, outputs=["embedding"])
    kill()
    known = engine.intermediates(shapes)
    kill()
    engine.bind([shapes], backend.memory)
    assert known == engine.intermediates(shapes)
    assert backend.pid not in seen
    assert len(seen) == 3
    results = engine.run(inputs, {"embedding": None})
    np.testing.assert_allclose(results["embedding"], expected, rtol=1e-5)
    assert [model["clients"] for model in services.stats()["models"]] == [1]
    backend.close()


def test_load_that_finds_no_next_service_fails_with_its_reason(services, version_dir):
    first = ServiceBackend("cpu", "first")
    backend = ServiceBackend("cpu", "client")
    pid = backend.pid
    artifact = Artifact(version_dir(ENCODER) / "model.onnx", "onnxruntime", "")
    with nobody_starts_another():
        backend._client._timeouts = Timeouts(
            start_s=0.2
        )  # for the next one: that one took its time
        os.kill(pid, signal.SIGKILL)
        wait_for_end(pid)
        with pytest.raises(EngineLost, match=r"found no device service of cpu that responds"):
            backend.open([artifact], threads=1, outputs=["embedding"])
        backend.close()
    first.close()


def test_client_closes_at_once_while_the_next_service_starts(
    services, version_dir, tmp_path, monkeypatch
):
    timeouts = Timeouts(start_s=3600.0, retry_s=0.01)
    backend = ServiceBackend("cpu", "client", timeouts=timeouts)
    artifact = Artifact(version_dir(ENCODER) / "model.onnx", "onnxruntime", "")
    engine = backend.open([artifact], threads=1, outputs=["embedding"])
    buffer = backend.memory.allocate("inputs", 1000)
    pid = backend.pid
    with never_listening(services, tmp_path, monkeypatch):
        os.kill(pid, signal.SIGKILL)
        wait_for_end(pid)
        until(lambda: lock_holder(services) not in (None, pid), "the start of the next one")
        for close in (buffer.free, engine.close, backend.close):
            Beside(close).result()


def test_client_of_a_service_that_hangs_closes_soon(services, version_dir, monkeypatch):
    monkeypatch.setattr(reconnecting_client, "_NOTIFY_S", 0.01)
    backend = ServiceBackend("cpu", "client", timeouts=Timeouts(hung_s=3600.0, retry_s=3600.0))
    artifact = Artifact(version_dir(ENCODER) / "model.onnx", "onnxruntime", "")
    engine = backend.open([artifact], threads=1, outputs=["embedding"])
    buffers = [backend.memory.allocate("inputs", 1000) for _ in range(3)]
    stop(backend.pid)
    for close in (engine.close, *(buffer.free for buffer in buffers), backend.close):
        Beside(close).result()


def test_a_service_that_never_listens_is_reported_with_its_process(services, tmp_path, monkeypatch):
    with never_listening(services, tmp_path, monkeypatch):
        starting = Beside(ServiceBackend, "cpu", "first", timeouts=Timeouts(start_s=3600.0))
        until(lambda: lock_holder(services) is not None, "the start")
        pid = lock_holder(services)
        stop(pid)
        with pytest.raises(ServiceFault) as raised:
            ServiceBackend("cpu", "second", timeouts=Timeouts(start_s=0.1))
        assert str(raised.value) == (
            "found no device service of cpu that responds within 0.1 s; "
            f"process {pid} is the service, or is starting it: end this process if it hangs; "
            f"its log is {services.path}/cpu.log"
        )
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(ServiceFault, match="did not start: it ended without a message"):
            starting.result()


@contextlib.contextmanager
def never_listening(services, tmp_path, monkeypatch):
    """Within the context, new services hang before they listen; they are ended afterwards."""
    other = tmp_path / "other"
    (other / "ge_runtime").mkdir(parents=True)
    (other / "ge_runtime" / "__init__.py").write_text("import threading; threading.Event().wait()")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "path", [str(other), *sys.path])
        patch.setattr(launcher, "subprocess", subprocess)  # a fork has imported the real package
        try:
            yield
        finally:
            if services.is_locked():
                os.kill(lock_holder(services), signal.SIGKILL)


def lock_holder(services):
    """The process that has the lock; None before it is one that is to be the service."""
    lock = services.path / "cpu.lock"
    text = lock.read_text() if lock.exists() else ""
    return int(text) if text else None


def test_client_that_meets_a_service_that_hangs_has_the_next(services, hang):
    """Even if it took all the time there was to find that out."""
    first = ServiceBackend("cpu", "first", timeouts=Timeouts(probe_s=3600.0))
    hanging = first.pid
    hang(hanging)
    second = ServiceBackend("cpu", "second", timeouts=QUICK)
    assert second.pid != hanging
    second.close()
    first.close()


def test_fork_of_a_client_does_not_hide_its_death(services, runtime, version_dir):
    model = version_dir(ENCODER) / "model.onnx"
    with ClientProcess(model, forks=True) as client:
        client.service()
        client.fork()
        assert len(services.stats()["clients"]) == 2
        os.kill(client.pid, signal.SIGKILL)
        until(lambda: len(services.stats()["clients"]) == 1, "the end of the killed client")
    (answer,) = runtime.infer([request(1, 2)])
    np.testing.assert_allclose(answer["embedding"], encode([[1, 2]]), rtol=1e-5)


def test_a_fork_of_a_client_has_no_service(services, version_dir):
    with ClientProcess(version_dir(ENCODER) / "model.onnx", forks=True) as client:
        pid = client.service()
        client.fork()
        assert client.said() == (
            f"the device service of cpu (pid {pid}) is lost: the connection belongs to the "
            f"process that forked this one; it was closed; its log is {services.path}/cpu.log"
        )
        assert client.said() == "the client goes on"


def test_a_client_that_hangs_blocks_no_other(services, runtime, version_dir):
    with ClientProcess(version_dir(ENCODER) / "model.onnx") as client:
        client.service()
        stop(client.pid)
        for _ in range(20):
            (answer,) = runtime.infer([request(1)])
            np.testing.assert_allclose(answer["embedding"], encode([[1]]), rtol=1e-5)


def test_model_whose_file_has_changed_does_not_come_back_as_another(services, tmp_path):
    path = write(ENCODER, "onnxruntime", tmp_path / "1")
    backend = ServiceBackend("cpu", "client", timeouts=QUICK)
    engine = backend.open([Artifact(path, "onnxruntime", "")], threads=1, outputs=["embedding"])
    write(PIXELS, "onnxruntime", tmp_path / "1")
    pid = backend.pid
    os.kill(pid, signal.SIGKILL)
    wait_for_end(pid)

    def why():
        with pytest.raises(RuntimeFault) as raised:
            engine.run(token_batch(1, 1)[0], {"embedding": None})
        return str(raised.value)

    until(lambda: "load the model again" in why(), "the reason")
    write(ENCODER, "onnxruntime", tmp_path / "1")
    until(lambda: not engine.lost, "the model as it was")
    backend.close()


def test_service_is_not_ended_for_what_is_wrong_here(services):
    backend = ServiceBackend("cpu", "client")
    with RuntimeFolder.open(services.path) as folder:
        heartbeat = Heartbeat("cpu", folder, Timeouts(probe_s=0.0), backend.pid, lambda: None)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        # No file can be opened. The client's thread may poll, which needs room for its two files.
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            heartbeat.check()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert services.pid() == backend.pid
    backend.close()


def test_a_service_restarts_after_its_folder_was_removed(services, runtime):
    pid = services.pid()
    shutil.rmtree(services.path)
    with nobody_starts_another():
        os.kill(pid, signal.SIGKILL)
        until(lambda: not runtime.is_ready(), "the notice")
    until(runtime.is_ready, "the next service")
    (answer,) = runtime.infer([request(2)])
    np.testing.assert_allclose(answer["embedding"], encode([[2]]), rtol=1e-5)
    assert services.pid() not in (None, pid)


@pytest.fixture
def fork():
    """A function that forks this process, as for a pool; the fork waits until the test is over."""
    forked = []
    reading, writing = os.pipe()

    def fork():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # that there are threads is real
            child = os.fork()
        if not child:
            os.close(writing)
            os.read(reading, 1)
            os._exit(0)
        forked.append(child)

    yield fork
    os.close(writing)
    os.close(reading)
    for child in forked:
        os.waitpid(child, 0)


def before(function, what):
    """The function, before which something else is done."""

    def both(*arguments):
        what()
        return function(*arguments)

    return both


def test_fork_while_the_service_starts_does_not_keep_its_lock(services, fork, monkeypatch):
    monkeypatch.setattr(launcher, "_spawn", before(launcher._spawn, fork))
    backend = ServiceBackend("cpu", "client", timeouts=Timeouts(grace_s=0.01))
    backend.close()
    wait_for_end(backend.pid)
    assert not services.is_locked()


def test_a_fork_while_the_service_greets_does_not_hide_a_client_that_ended(
    services, fork, monkeypatch
):
    other = ServiceBackend("cpu", "who keeps the service")
    with monkeypatch.context() as patch:
        patch.setattr(connection, "request", before(connection.request, fork))
        backend = ServiceBackend("cpu", "client")
    backend.close()
    until(lambda: [one["name"] for one in services.stats()["clients"]] == ["who keeps the service"])
    other.close()
