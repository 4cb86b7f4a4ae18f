"""Forks of a process while another of its threads connects to a service."""

import os
import warnings

import pytest
from runtime.support.services import wait_for_end
from support.waiting import until

from ge_runtime.npu.service import connection, launcher
from ge_runtime.npu.service.backend import ServiceBackend
from ge_runtime.npu.service.protocol import Timeouts

pytestmark = pytest.mark.brute_force


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
