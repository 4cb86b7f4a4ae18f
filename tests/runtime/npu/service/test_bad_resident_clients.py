"""Invalid messages about resident rows: they are refused with a reason and harm no other client."""

import os

import pytest
from runtime.support.graphs import ENCODER
from runtime.support.services import patience

from ge_runtime.errors import RuntimeFault, ServiceFault
from ge_runtime.npu.service.backend import ServiceBackend
from ge_runtime.npu.service.connection import request
from ge_runtime.npu.service.protocol import NOWHERE, pack_layout, pack_run, unpack_done
from ge_runtime.npu.service.shared_memory import sealed_file

pytestmark = pytest.mark.brute_force

INPUTS = [(1, 0, (1, 4)), (1, 64, (1, 4))]
STAYS = {"inputs": {}, "outputs": {}, "rows": 8, "reads": 1, "lease_s": 60, "spare_s": 5}
EMBEDDING = {"embedding": ["encoder", "FP32", [4]]}


@pytest.fixture(scope="module", autouse=True)
def neighbour(shared_services):
    """The client that keeps the service running."""
    backend = ServiceBackend("cpu", "neighbour")
    yield backend
    backend.close()


@pytest.fixture
def client(shared_services):
    channel, welcome = shared_services.greet(role="client", name="rude", priority=0)
    yield channel, welcome
    channel.close()


def answer(channel, message, descriptors=()):
    return request(channel, message, patience(), descriptors)


def asked(version_dir, resident):
    path = version_dir(ENCODER) / "model.onnx"
    opening = {"do": "open", "artifacts": [[str(path), "onnxruntime", ""]], "threads": 1}
    return {**opening, "outputs": ["embedding"], "resident": resident}


@pytest.mark.parametrize(
    "resident",
    [
        7,
        [],
        {},
        {**STAYS, "outputs": None},
        {**STAYS, "outputs": ["embedding"]},
        {**STAYS, "outputs": {"embedding": ["encoder", "FP32"]}},
        {**STAYS, "outputs": {"embedding": ["encoder", "FP32", []]}},
        {**STAYS, "outputs": {"embedding": ["encoder", "FP32", [0]]}},
        {**STAYS, "outputs": {"embedding": ["encoder", "FP32", [2**40]]}},
        {**STAYS, "outputs": {"embedding": ["encoder", "FP32", [True]]}},
        {**STAYS, "outputs": {"embedding": ["encoder", "BYTES", [4]]}},
        {**STAYS, "outputs": {"embedding": ["encoder", "FP33", [4]]}},
        {**STAYS, "outputs": {"embedding": ["x" * 1000, "FP32", [4]]}},
        {**STAYS, "rows": -1},
        {**STAYS, "rows": 2**40},
        {**STAYS, "reads": 0},
        {**STAYS, "reads": "1"},
        {**STAYS, "lease_s": 10**9},
        {**STAYS, "spare_s": 0},
    ],
)
def test_resident_tensors_that_are_none_are_refused(client, version_dir, resident):
    channel, _ = client
    with pytest.raises(ServiceFault, match="the device service refuses: found"):
        answer(channel, asked(version_dir, resident))
    assert answer(channel, asked(version_dir, STAYS))["engine"]


@pytest.mark.parametrize("handles", [None, 7, [], "xy" * 32, "0" * 63, "0" * 64 * 257, "é" * 64])
def test_handles_that_are_none_are_refused(client, handles):
    channel, _ = client
    with pytest.raises(ServiceFault, match="the device service refuses: found handles"):
        answer(channel, {"do": "let_go", "handles": handles})
    assert answer(channel, {"do": "let_go", "handles": "f" * 64 * 256}) == {}


def test_more_rows_than_there_is_memory_are_refused(client, version_dir):
    channel, _ = client
    wanted = {**STAYS, "outputs": EMBEDDING, "rows": 1_000_000}
    engine = answer(channel, asked(version_dir, wanted))["engine"]
    with pytest.raises(ServiceFault, match="expected 'bind' first"):
        answer(channel, {"do": "keep", "engine": engine})
    shapes = {"input_ids": [2**50, 8], "attention_mask": [2**50, 8]}
    with pytest.raises(RuntimeFault):
        answer(channel, {"do": "bind", "engine": engine, "largest": [shapes]})
    answer(channel, {"do": "close", "engine": engine})
    assert answer(channel, asked(version_dir, STAYS))["engine"]


@pytest.mark.parametrize(
    ("output", "filled", "reported"),
    [
        ((1, 128, (1, 4)), 2, "found 2 rows in use, expected 1 to 1"),
        ((1, 128, (1, 4)), 0, "found 0 rows in use, expected 1 to 1"),
        ((1, 128, (1, 3)), 1, "found handles [1, 3], expected [rows, 4]"),
        ((1, 128, ()), 1, "found handles [], expected [rows, 4]"),
        ((NOWHERE, 0, ()), 1, "found handles none, expected [rows, 4]"),
        ((1, 128, (9, 4)), 9, "found 0 of 8 places of FP32[4] of encoder taken, expected 9 free"),
    ],
)
def test_executions_whose_handles_have_no_room_are_refused_one_by_one(
    shared_services, client, version_dir, output, filled, reported
):
    channel, welcome = client
    engine = answer(channel, asked(version_dir, {**STAYS, "outputs": EMBEDDING}))["engine"]
    descriptor = sealed_file("test", 4096)
    answer(channel, {"do": "arena", "number": 1, "nbytes": 4096}, [descriptor])
    os.close(descriptor)
    shapes = {"input_ids": [8, 4], "attention_mask": [8, 4]}
    runs, _ = shared_services.greet(role="run", client=welcome["client"], engine=engine)
    runs.send(pack_run(1, 60.0, pack_layout(INPUTS, [(0, (1, 128, (1, 4)))]), 1))
    done = unpack_done(runs.receive(patience())[1])
    assert "expected 'bind' first" in done.fault[1]
    answer(channel, {"do": "bind", "engine": engine, "largest": [shapes]})
    answer(channel, {"do": "keep", "engine": engine})
    runs.send(pack_run(2, 60.0, pack_layout(INPUTS, [(0, output)]), filled))
    assert reported in unpack_done(runs.receive(patience())[1]).fault[1]
    runs.send(pack_run(3, 60.0, pack_layout(INPUTS, [(0, (1, 128, (1, 4)))]), 1))
    assert unpack_done(runs.receive(patience())[1]).fault is None
    runs.close()
