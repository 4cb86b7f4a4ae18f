"""The start of a device service, its folder, and its end without clients."""

import contextlib
import fcntl
import os
import re
import resource
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from runtime.support.graphs import ENCODER
from runtime.support.services import ClientProcess, wait_for_end
from support.waiting import until

from ge_runtime.errors import ServiceFault
from ge_runtime.npu.service import launcher, protocol
from ge_runtime.npu.service.backend import ServiceBackend
from ge_runtime.npu.service.launcher import RuntimeFolder, runtime_folder
from ge_runtime.npu.service.protocol import Timeouts

pytestmark = pytest.mark.brute_force


@pytest.fixture(autouse=True)
def started_by_python(monkeypatch):
    """Start services with a new interpreter, which the other modules of tests do not."""
    monkeypatch.setattr(launcher, "subprocess", subprocess)


def test_four_clients_that_start_at_once_share_one_service(services, version_dir):
    model = version_dir(ENCODER) / "model.onnx"
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(ClientProcess(model)) for _ in range(4)]
        pids = {client.service() for client in clients}
        assert len(pids) == 1
        stats = services.stats()
        assert {stats["pid"]} == pids
        assert {client["pid"] for client in stats["clients"]} == {c.pid for c in clients}
        (loaded,) = stats["models"]
        assert (loaded["clients"], stats["memory"]["weights"]) == (4, loaded["weights"])
        assert [client.leave() for client in clients] == [0] * 4
    until(lambda: services.stats()["clients"] == [], "their leave")
    assert services.stats()["models"] == []


def test_service_without_clients_ends_after_its_grace_and_leaves_no_socket(services):
    backend = ServiceBackend("cpu", "only", timeouts=Timeouts(grace_s=0.05))
    pid = backend.pid
    before = {"cpu.log.old"}  # of one that it came to too late, perhaps
    assert services.names() - before == {"cpu.sock", "cpu.lock", "cpu.log"}
    assert services.is_locked()
    backend.close()
    wait_for_end(pid)
    assert services.names() - before == {"cpu.lock", "cpu.log"}
    assert not services.is_locked()
    log = (services.path / "cpu.log").read_text()
    assert "only (pid" in log
    assert "the service ends: it has had no clients for a while" in log


def test_clients_that_come_and_go_while_services_end_are_all_served(services):
    """Each leaves as the grace ends, so that the next one meets a service on its way out."""
    timeouts = Timeouts(grace_s=0.001)

    def come_and_go(number):
        for _ in range(3):
            ServiceBackend("cpu", f"client {number}", timeouts=timeouts).close()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(come_and_go, range(4)))


def test_socket_that_a_killed_service_left_is_no_obstacle(services, monkeypatch):
    services.path.mkdir(0o700)
    monkeypatch.chdir(services.path)  # the absolute path may be too long for a socket
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stale:
        stale.bind("cpu.sock")
    (services.path / "cpu.lock").touch(0o600)
    backend = ServiceBackend("cpu", "client")
    assert backend.pid == services.pid()
    backend.close()


def test_socket_of_another_kind_is_a_fault_with_its_reason(services, monkeypatch):
    services.path.mkdir(0o700)
    monkeypatch.chdir(services.path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.bind("cpu.sock")
        other.listen()
        with pytest.raises(ServiceFault, match="the device service of cpu cannot be reached"):
            ServiceBackend("cpu", "client")
    (services.path / "cpu.sock").unlink()


def test_interpreter_that_cannot_start_it_is_a_fault_with_the_log(services, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(ServiceFault) as raised:
        ServiceBackend("cpu", "client")
    assert str(raised.value) == (
        "the device service of cpu did not start: it ended without a message\n"
        f"its log is {services.path}/cpu.log"
    )
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(ServiceFault, match=r"cannot be started: .* No such file"):
        ServiceBackend("cpu", "client")
    assert not services.is_locked()


def test_a_folder_in_place_of_a_file_is_reported_with_its_path(services):
    (services.path / "cpu.lock").mkdir(0o700, parents=True)
    services.path.chmod(0o700)
    expected = f"cannot be started: {services.path}: [Errno 21] Is a directory: 'cpu.lock'"
    with pytest.raises(ServiceFault, match=re.escape(expected)):
        ServiceBackend("cpu", "client")


def test_a_package_that_the_service_lacks_is_reported(services, monkeypatch):
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(ServiceFault, match="No module named"):
        ServiceBackend("cpu", "client")


def test_a_client_of_another_version_gets_both_versions(services, monkeypatch):
    backend = ServiceBackend("cpu", "client")
    reported = f"version {protocol.VERSION} of the protocol, expected 9"
    monkeypatch.setattr(protocol, "VERSION", 9)
    with pytest.raises(ServiceFault, match=reported):
        ServiceBackend("cpu", "newer")
    monkeypatch.undo()
    backend.close()
    os.kill(backend.pid, signal.SIGTERM)
    wait_for_end(backend.pid)


def test_signal_ends_the_service_in_order(services):
    backend = ServiceBackend("cpu", "client", timeouts=Timeouts(retry_s=60.0))
    os.kill(backend.pid, signal.SIGTERM)
    wait_for_end(backend.pid)
    assert "cpu.sock" not in services.names()
    assert "the service ends: SIGTERM" in (services.path / "cpu.log").read_text()
    backend.close()


def test_a_service_does_not_depend_on_the_client_that_started_it(services):
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        backend = ServiceBackend("cpu", "client")
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    process = Path(f"/proc/{backend.pid}")
    status = dict(line.split(":\t", 1) for line in (process / "status").read_text().splitlines())
    assert int(status["SigBlk"], 16) == 0
    assert status["Umask"] == "0077"
    assert int(status["PPid"]) != os.getpid()  # so it is not ours to wait for
    assert os.getsid(backend.pid) != os.getsid(0)  # nor in reach of a terminal's Ctrl-C
    assert (process / "cwd").readlink() == Path("/")
    assert resource.prlimit(backend.pid, resource.RLIMIT_NOFILE) == (min(hard, 65_536), hard)
    with RuntimeFolder.open(services.path) as folder, pytest.raises(BlockingIOError):
        fcntl.flock(folder.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # as cleaners of /tmp do
    backend.close()


def test_service_that_hangs_before_it_listens_ends_itself_and_frees_the_lock(
    services, tmp_path, monkeypatch
):
    other = tmp_path / "other"
    (other / "ge_runtime").mkdir(parents=True)
    (other / "ge_runtime" / "__init__.py").write_text("import threading; threading.Event().wait()")
    monkeypatch.setattr(sys, "path", [str(other), *sys.path])
    with pytest.raises(ServiceFault, match=r"(?s)Timeout.*line 1 in <module>"):
        ServiceBackend("cpu", "client", timeouts=Timeouts(start_s=2.0))
    monkeypatch.undo()
    assert not (services.path / "cpu.sock").exists()
    until(lambda: not services.is_locked(), "the lock")


def test_log_that_has_grown_long_begins_again(services):
    backend = ServiceBackend("cpu", "first")
    log = services.path / "cpu.log"
    with log.open("ab") as file:
        file.write(b"x" * 2**20)
    ServiceBackend("cpu", "second").close()
    assert log.stat().st_size < 1000
    assert "second (pid" in log.read_text()
    assert "first (pid" in (services.path / "cpu.log.old").read_text()
    backend.close()


def test_folder_is_the_user_s_runtime_folder_or_in_tmp(tmp_path):
    assert runtime_folder({"XDG_RUNTIME_DIR": str(tmp_path)}, 7) == tmp_path / "ge_runtime"
    for environment in ({}, {"XDG_RUNTIME_DIR": ""}, {"XDG_RUNTIME_DIR": "/no/such/place"}):
        assert str(runtime_folder(environment, 7)) == "/tmp/ge_runtime-7"


def test_folder_is_made_for_the_user_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with RuntimeFolder.open() as folder:
        assert folder.path == tmp_path / "ge_runtime"
        assert folder.path.stat().st_mode & 0o777 == 0o700
    with RuntimeFolder.open() as again:
        assert again.devices() == []


@pytest.mark.parametrize("mode", [0o701, 0o710, 0o755, 0o777])
def test_folder_that_others_may_enter_is_refused(tmp_path, mode):
    path = tmp_path / "ge_runtime"
    path.mkdir()
    path.chmod(mode)
    with pytest.raises(ServiceFault, match=rf"with mode 0{mode:o}, expected a folder of user"):
        RuntimeFolder.open(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_folder_of_another_user_is_refused(tmp_path):
    path = tmp_path / "ge_runtime"
    path.mkdir(0o700)
    os.chown(path, 12345, 12345)
    with pytest.raises(ServiceFault, match="found a folder of user 12345"):
        RuntimeFolder.open(path)


def test_link_to_a_folder_is_refused(tmp_path):
    real = tmp_path / "real"
    real.mkdir(0o700)
    (tmp_path / "ge_runtime").symlink_to(real)
    with pytest.raises(ServiceFault, match="expected a folder for the device service"):
        RuntimeFolder.open(tmp_path / "ge_runtime")


def test_file_in_the_folder_s_place_is_refused(tmp_path):
    (tmp_path / "ge_runtime").write_text("")
    with pytest.raises(ServiceFault, match="XDG_RUNTIME_DIR can name another place"):
        RuntimeFolder.open(tmp_path / "ge_runtime")


def test_address_is_short_however_long_the_path_is(tmp_path):
    path = tmp_path / ("x" * 120)
    path.mkdir()
    with RuntimeFolder.open(path / "ge_runtime") as folder:
        assert len(folder.address("npu:0")) < 50
        assert folder.file("npu:0", "log") == path / "ge_runtime" / "npu-0.log"
