"""Regions over HTTP: registered, used by requests, and released."""

import json
import os

import numpy as np
import pytest
from server.support.frontend import Frontend, answering, failing, served
from server.support.http import get, post
from server.support.regions import object_file, shared_object

from reference_server.core import gil
from reference_server.core.errors import internal
from reference_server.core.metadata import SystemRegion

VECTOR = """
    input { name: "X" data_type: TYPE_FP32 dims: [-1] }
    output { name: "Y" data_type: TYPE_FP32 dims: [-1] }
"""
ONE_TWO = np.array([1, 2], np.float32)
SYSTEM, CUDA = "/v2/systemsharedmemory", "/v2/cudasharedmemory"


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


def shown(reply):
    return reply.status, reply.header("Content-Type"), reply.body.decode()


def infer(model="m", offset=0, size=8):
    place = {"shared_memory_region": "r", "shared_memory_byte_size": size}
    document = {
        "inputs": [{"name": "X", "datatype": "FP32", "shape": [2], "parameters": place}],
        "outputs": [{"name": "Y", "parameters": place | {"shared_memory_offset": offset}}],
    }
    return post(f"/v2/models/{model}/infer", json.dumps(document).encode())


def test_register_and_unregister_have_empty_replies(frontend, key):
    registration = json.dumps({"key": key, "byte_size": 32}).encode()
    assert shown(frontend.ask(post(f"{SYSTEM}/region/s/register", registration))) == (
        200,
        "application/json",
        "",
    )
    assert [region.name for region in frontend.shared_memory.regions(SystemRegion)] == ["r", "s"]
    for path in (
        f"{SYSTEM}/region/s/unregister",
        f"{CUDA}/unregister",
        f"{CUDA}/region/r/unregister",
    ):
        assert shown(frontend.ask(post(path, b""))) == (200, "application/json", "")
    assert [region.name for region in frontend.shared_memory.regions(SystemRegion)] == ["r"]
    frontend.ask(post(f"{SYSTEM}/unregister", b""))
    assert frontend.shared_memory.regions(SystemRegion) == []


def test_status(frontend, key):
    assert json.loads(frontend.ask(get(f"{SYSTEM}/region/r/status")).body) == [
        {"name": "r", "key": key, "offset": 0, "byte_size": 64}
    ]
    assert shown(frontend.ask(get(f"{CUDA}/status"))) == (200, "application/json", "[]")


@pytest.mark.parametrize(
    ("request_bytes", "status", "said"),
    [
        (get(f"{SYSTEM}/region/x/status"), 404, "Unable to find system shared memory region: 'x'"),
        (post(f"{SYSTEM}/register", b""), 400, "'region name' is necessary to register system"),
        (post(f"{CUDA}/register", b""), 400, "'region name' is necessary to register cuda"),
        (post(f"{SYSTEM}/region/r/register", b""), 500, "The document is empty. at 0"),
        (get(f"{SYSTEM}/region/r/register"), 405, "Method Not Allowed"),
        (post(f"{CUDA}/status", b""), 405, "Method Not Allowed"),
    ],
)
def test_rejections(frontend, request_bytes, status, said):
    reply = frontend.ask(request_bytes)
    assert (reply.status, reply.header("Content-Type")) == (status, "application/json")
    assert said in reply.body.decode()


def test_an_output_goes_to_its_region(frontend, key):
    assert shown(frontend.ask(infer(offset=16))) == (
        200,
        "application/json",
        '{"model_name":"m","model_version":"1",'
        '"outputs":[{"name":"Y","datatype":"FP32","shape":[2]}]}',
    )
    assert object_file(key).read_bytes()[16:24] == ONE_TWO.tobytes()


def test_an_output_that_does_not_fit_is_an_error_in_plain_text(frontend):
    frontend.shared_memory.unregister(SystemRegion, "r")
    with shared_object(bytes(4096)) as key:
        frontend.shared_memory.register_system("r", key, 64)
        place = {"shared_memory_region": "r", "shared_memory_byte_size": 4}
        document = {
            "inputs": [{"name": "X", "datatype": "FP32", "shape": [2], "data": [1, 2]}],
            "outputs": [{"name": "Y", "parameters": place}],
        }
        reply = frontend.ask(post("/v2/models/m/infer", json.dumps(document).encode()))
    assert (reply.status, reply.header("Content-Type")) == (500, "text/plain")
    assert b"(4 bytes) should be at least 8 bytes to hold the results" in reply.body


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


# ----------------------------------------------------------------------------- truncated objects


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
