"""Device services in separate folders; services that a test leaves running are ended."""

import time
from types import SimpleNamespace

import pytest
from runtime.support.services import Services, stop
from support.fork_server import ForkServer, path_and

from ge_runtime.npu.service import connection, launcher


@pytest.fixture(scope="session")
def service_fork_server():
    """Return the starter of device services as forks."""
    imports = "import ascend_simulator, onnxruntime, ge_runtime.npu.service.server"
    server = ForkServer(path_and(imports))
    yield server
    server.close()


@pytest.fixture(autouse=True, scope="module")
def forked_services(service_fork_server):
    """Start device services as forks, except in test_start.py."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launcher, "subprocess", service_fork_server)
        yield


@pytest.fixture
def services(tmp_path, monkeypatch):
    """The device services below a folder of this test."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with Services(tmp_path / "ge_runtime") as there:
        yield there


@pytest.fixture
def hang(monkeypatch):
    """A function that stops a service; the next probe of it advances the clock by an hour.

    All other waits are as long as the machine needs.
    """
    hanging, lost_s = set(), 0.0
    probe = connection.Heartbeat._probe

    def look(heartbeat, patience):
        def no_patience():
            nonlocal lost_s
            if heartbeat._pid in hanging:
                hanging.discard(heartbeat._pid)
                lost_s += 3600.0
            patience()

        probe(heartbeat, no_patience)

    def stop_for_good(pid):
        stop(pid)
        hanging.add(pid)

    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + lost_s, sleep=time.sleep)
    monkeypatch.setattr(connection, "time", clock)
    monkeypatch.setattr(connection.Heartbeat, "_probe", look)
    return stop_for_good


@pytest.fixture(scope="module")
def shared_services(tmp_path_factory):
    """The device services of all tests in a module, started once."""
    folder = tmp_path_factory.mktemp("services")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(folder))
        with Services(folder / "ge_runtime") as there:
            yield there
