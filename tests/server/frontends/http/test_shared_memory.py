"""Regions over HTTP: released by every reply, and truncated."""

import json
import os

import numpy as np
import pytest
from server.support.frontend import Frontend, answering, failing, served
from server.support.http import post
from server.support.model_folders import VECTOR
from server.support.regions import object_file, shared_object

from reference_server.core import gil
from reference_server.core.errors import internal
from reference_server.core.metadata import SystemRegion

ONE_TWO = np.array([1, 2], np.float32)


@pytest.fixture
def key():
    with shared_object(bytes(4096)) as made:
        yield made


@pytest.fixture
def frontend(key):
    frontend = Frontend(
        served(VECTOR, answer=answering(Y=ONE_TWO)),
        served(VECTOR, "failing", answer=failing(internal("no"))),
    )
    frontend.shared_memory.register_system("r", key, 64)
    yield frontend
    frontend.shared_memory.close()


def infer(model="m", offset=0, size=8):
    place = {"shared_memory_region": "r", "shared_memory_byte_size": size}
    document = {
        "inputs": [{"name": "X", "datatype": "FP32", "shape": [2], "parameters": place}],
        "outputs": [{"name": "Y", "parameters": place | {"shared_memory_offset": offset}}],
    }
    return post(f"/v2/models/{model}/infer", json.dumps(document).encode())


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (infer(), 200),
        (infer("failing"), 500),  # the model's error
        (infer(offset=60), 400),  # found while it is read
        (infer(size=4), 400),  # found by the rules
    ],
)
def test_every_reply_releases_the_regions(frontend, request_bytes, status):
    assert frontend.ask(request_bytes).status == status
    frontend.shared_memory.unregister(SystemRegion, "r")
    assert frontend.shared_memory.regions(SystemRegion) == []


def cut(key, then):
    """A model that lets the client truncate its object before the response."""

    def answer(request):
        os.truncate(object_file(key), 0)
        return then(request)

    return answer


def test_a_truncated_input_is_an_error_of_its_request(frontend, key):
    os.truncate(object_file(key), 0)
    for _ in range(2):  # the second request is in the memo
        reply = frontend.ask(infer())
        assert (reply.status, reply.header("Content-Type")) == (400, "application/json")
        assert b"cannot be used: its object" in reply.body
    frontend.shared_memory.unregister(SystemRegion, "r")


def test_an_output_region_truncated_during_execution_is_an_error(key):
    frontend = Frontend(served(VECTOR, answer=cut(key, answering(Y=ONE_TWO))))
    frontend.shared_memory.register_system("r", key, 64)
    reply = frontend.ask(infer())
    assert (reply.status, reply.header("Content-Type")) == (400, "text/plain")
    assert b"has 0 bytes, expected at least 8" in reply.body
    assert object_file(key).stat().st_size == 0
    frontend.shared_memory.unregister(SystemRegion, "r")


@pytest.mark.parametrize(("least", "apart"), [(8, 0), (7, 2)])
def test_long_tensors_are_copied_on_another_thread(frontend, key, monkeypatch, least, apart):
    monkeypatch.setattr(gil, "SHARED_BYTES", least)
    monkeypatch.setattr(gil, "ELEMENTS", 1)
    for count in (1, 2):
        assert frontend.ask(infer(offset=16)).status == 200
        assert object_file(key).read_bytes()[16:24] == ONE_TWO.tobytes()
        assert frontend.background.count == count * apart
        frontend.shared_memory.unregister(SystemRegion, "r")
        frontend.shared_memory.register_system("r", key, 64)
