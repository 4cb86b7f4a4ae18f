"""Readiness of models with `is_ready`: called on another thread, over both frontends."""

import asyncio
import threading

import pytest
from server.support.clock import ManualClock
from server.support.frontend import gateway, served
from server.support.grpc import SERVICE, MadeUpCall
from server.support.http import Client, get
from server.support.requests import PATIENCE_S
from tritonclient.grpc import service_pb2 as pb

from reference_server.core.profiles import NEWEST
from reference_server.frontends.grpc import methods
from reference_server.frontends.http.handlers import HttpHandlers
from reference_server.gateway.shared_memory import SharedMemory


def over_http(asked, loop):
    """Send the question; return a function that returns the answer, or None before it."""
    client = Client(HttpHandlers(asked, SharedMemory(), None, loop, ManualClock()).handle)
    client.send(get("/v2/models/m/ready"))
    replies = []

    def answer():
        replies.extend(client.replies())
        return {200: True, 400: False}[replies[0].status] if replies else None

    return answer


def over_grpc(asked, loop):
    """Send the question; return a function that returns the answer, or None before it."""
    call = MadeUpCall()
    table = methods.table(asked, SharedMemory(), None, loop, ManualClock())
    running = table[f"{SERVICE}ModelReady"].start(call)
    running.receive(pb.ModelReadyRequest(name="m").SerializeToString())
    running.half_close()

    def answer():
        if not call.has_ended:
            return None
        assert call.error is None
        (message,) = call.sent
        return pb.ModelReadyResponse.FromString(message).ready

    return answer


def run(frontend, *probes):
    """Return the answer at once, and the final one."""

    async def scene():
        model = served("", "m")
        for number, question in enumerate(probes):
            model.health.add_probe(f"m_{number}", question)
        answer = frontend(gateway(model, profile=NEWEST), asyncio.get_running_loop())
        at_once = answer()
        may_say.set()
        while (said := answer()) is None:
            await asyncio.sleep(0)
        return at_once, said

    return asyncio.run(scene())


may_say = threading.Event()


@pytest.fixture(autouse=True)
def _closed_lips():
    may_say.clear()


def later(*, ready):
    """A question that is not answered before the loop was free."""

    def question():
        assert may_say.wait(PATIENCE_S)
        return ready

    return question


@pytest.mark.parametrize("frontend", [over_http, over_grpc])
def test_a_slow_is_ready_does_not_block_the_loop(frontend):
    assert run(frontend, later(ready=True)) == (None, True)
    may_say.clear()
    assert run(frontend, later(ready=False)) == (None, False)


@pytest.mark.parametrize("frontend", [over_http, over_grpc])
def test_one_unready_instance_is_enough(frontend):
    assert run(frontend, lambda: True, later(ready=False)) == (None, False)
    assert run(frontend) == (True, True), "without probes, it is answered at once"


def test_a_failing_is_ready_is_answered_over_http():
    def fail():
        may_say.wait(PATIENCE_S)
        raise KeyError("a defect")

    assert run(over_http, fail) == (None, False)
