"""Clients that send invalid messages: they are refused, and no other client is affected."""

import contextlib
import fcntl
import os
import struct
import subprocess
import sys

import numpy as np
import pytest
from runtime.engines.conformance_engine import token_batch
from runtime.support.graphs import ENCODER
from runtime.support.services import descriptors_of, patience
from support.waiting import until

from ge_runtime.engines.artifact import Artifact
from ge_runtime.errors import ArtifactFault, OutOfMemory, RuntimeFault, ServiceFault
from ge_runtime.npu.service.backend import ServiceBackend
from ge_runtime.npu.service.channel import PeerGone
from ge_runtime.npu.service.connection import request
from ge_runtime.npu.service.protocol import (
    MOST_LARGE_BYTES,
    NOWHERE,
    VERSION,
    Kind,
    framed,
    pack_json,
    pack_layout,
    pack_run,
    unpack_done,
)
from ge_runtime.npu.service.shared_memory import sealed_file


@pytest.fixture(scope="module")
def neighbour(shared_services, version_dir):
    """A well-behaved client, which must be served after each test as before."""
    backend = ServiceBackend("cpu", "neighbour")
    artifact = Artifact(version_dir(ENCODER) / "model.onnx", "onnxruntime", "")
    engine = backend.open([artifact], threads=1, outputs=["embedding"])
    yield engine
    backend.close()


@pytest.fixture(autouse=True)
def unharmed(shared_services, neighbour):
    pid = shared_services.pid()
    yield
    inputs, expected = token_batch(2, 3)
    results = neighbour.run(inputs, {"embedding": None})
    np.testing.assert_allclose(results["embedding"], expected, rtol=1e-5)
    assert shared_services.pid() == pid


@pytest.fixture
def client(shared_services):
    channel, welcome = shared_services.greet(role="client", name="rude", weight=1.0, priority=0)
    yield channel, welcome
    channel.close()


def answer(channel, message, descriptors=()):
    return request(channel, message, patience(), descriptors)


def opened(channel, version_dir):
    path = version_dir(ENCODER) / "model.onnx"
    artifacts = [[str(path), "onnxruntime", ""]]
    message = {"do": "open", "artifacts": artifacts, "threads": 1, "outputs": ["embedding"]}
    return answer(channel, message)["engine"]


def until_gone(channel):
    """Receive until the service has closed the connection; all that it says is a refusal."""
    with contextlib.suppress(PeerGone):
        while True:
            message, _ = channel.receive_json(patience())
            assert message.keys() == {"refused"}


@pytest.mark.parametrize(
    "packet",
    [
        b"x",
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack("<4sHHI", b"GErt", VERSION, 1, 4_000_000_000),
        framed(Kind.CONTROL, b"\xff\xff"),
        framed(Kind.CONTROL, b"[1, 2]"),
        framed(Kind.LARGE, b""),
        framed(Kind.RUN, b"\0" * 100),
        framed(Kind.CONTROL, pack_json({"role": "king"})),
        framed(Kind.CONTROL, pack_json({})),
        framed(Kind.CONTROL, pack_json({"role": "run", "client": "guessed", "engine": 1})),
        framed(Kind.CONTROL, pack_json({"role": "run", "client": ["x"], "engine": 1})),
        framed(Kind.CONTROL, pack_json({"role": "client", "name": "x", "weight": 0})),
        framed(Kind.CONTROL, pack_json({"role": "client", "name": "x", "weight": "heavy"})),
        framed(Kind.CONTROL, pack_json({"role": "client", "name": "x", "priority": "high"})),
        b"\0" * 100_000,
    ],
)
def test_first_messages_that_are_none_are_refused(shared_services, packet):
    channel = shared_services.connect()
    channel.send(packet)
    until_gone(channel)
    channel.close()


@pytest.mark.parametrize(
    "message",
    [
        {"do": "fly"},
        {},
        {"do": "open"},
        {"do": "open", "artifacts": [["only a path"]], "threads": 1, "outputs": []},
        {"do": "open", "artifacts": [["/x", "onnxruntime", ""]], "threads": "1", "outputs": []},
        {"do": "open", "artifacts": [["/x", "onnxruntime", ""]], "threads": 0, "outputs": []},
        {"do": "open", "artifacts": [["/x", "onnxruntime", ""]], "threads": 10**9, "outputs": []},
        {"do": "keep", "engine": 99},
        {"do": "bind", "engine": 99, "largest": []},
        {"do": "bind", "engine": "1", "largest": []},
        {"do": "intermediates", "engine": -1, "shapes": {}},
        {"do": "cancel", "engine": None},
        {"do": "close", "engine": 12345},
        {"do": "forget", "number": 5},
        {"do": "forget", "number": "5"},
        {"do": "arena", "number": 1, "nbytes": 4096},
    ],
)
def test_requests_that_mean_nothing_are_refused_and_the_next_is_served(client, message):
    channel, _ = client
    with pytest.raises(ServiceFault, match="the device service refuses: found"):
        answer(channel, message)
    descriptor = sealed_file("test", 4096)
    answer(channel, {"do": "arena", "number": 1, "nbytes": 4096}, [descriptor])
    os.close(descriptor)


def test_long_nonsense_is_quoted_in_short(shared_services, client):
    channel, _ = client
    log = shared_services.path / "cpu.log"
    nonsense = "x" * 100_000
    before = log.stat().st_size
    with pytest.raises(ServiceFault, match="refuses: found command 'xxx") as refused:
        answer(channel, {"do": nonsense})
    opening = {"do": "open", "artifacts": [[nonsense, "onnxruntime", ""]], "threads": 1}
    with pytest.raises(RuntimeFault, match="xxx") as failed:
        answer(channel, {**opening, "outputs": []})
    assert len(str(refused.value)) + len(str(failed.value)) < 10_000
    assert log.stat().st_size - before < 10_000


@pytest.mark.parametrize("shapes", [{"x": [-1]}, {"x": "4"}, {"x": [1.5]}, [1]])
def test_shapes_that_are_none_are_refused(client, version_dir, shapes):
    channel, _ = client
    engine = opened(channel, version_dir)
    with pytest.raises(ServiceFault, match="refuses: found shape"):
        answer(channel, {"do": "intermediates", "engine": engine, "shapes": shapes})


def test_memory_that_could_vanish_is_refused(client):
    channel, _ = client
    growing = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.ftruncate(growing, 4096)
    small = sealed_file("test", 4096)
    read_only = sealed_file("other", 4096)
    for descriptors, nbytes in [
        ([growing], 4096),
        ([small], 8192),
        ([small], -1),
        ([small], 0),
        ([small, small], 4096),
    ]:
        with pytest.raises(ServiceFault, match="refuses"):
            answer(channel, {"do": "arena", "number": 1, "nbytes": nbytes}, descriptors)
    for descriptor in (growing, small, read_only):
        os.close(descriptor)


@pytest.mark.parametrize("kind", ["pipe", "folder", "socket", "sealed against writing", "empty"])
def test_what_is_no_memory_to_share_is_refused(client, tmp_path, kind):
    channel, _ = client
    with contextlib.ExitStack() as stack:
        if kind == "pipe":
            descriptor, other = os.pipe()
            stack.callback(os.close, other)
        elif kind == "folder":
            descriptor = os.open(tmp_path, os.O_RDONLY)
        elif kind == "socket":
            descriptor = os.dup(channel.fileno())
        else:
            descriptor = os.memfd_create("test", os.MFD_ALLOW_SEALING)
            os.ftruncate(descriptor, 0 if kind == "empty" else 4096)
            seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
        stack.callback(os.close, descriptor)
        with pytest.raises(ServiceFault, match="the device service refuses: found a"):
            answer(channel, {"do": "arena", "number": 1, "nbytes": 4096}, [descriptor])


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_a_model_that_is_not_a_file_is_refused_without_blocking(client, tmp_path, kind):
    channel, _ = client
    path = tmp_path / "model.onnx"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")  # which has no end
    else:
        path.mkdir()
    message = {"do": "open", "artifacts": [[str(path), "onnxruntime", ""]], "threads": 1}
    with pytest.raises(ArtifactFault, match=r"model\.onnx: found no regular file, expected one"):
        answer(channel, {**message, "outputs": ["y"]})


@pytest.mark.parametrize("path", ["\0", "x" * 5000, "\ud800", ""])
def test_paths_that_are_none_are_faults(client, path):
    channel, _ = client
    message = {"do": "open", "artifacts": [[path, "onnxruntime", ""]], "threads": 1}
    with pytest.raises(RuntimeFault):
        answer(channel, {**message, "outputs": ["y"]})


def test_more_shapes_than_any_model_has_are_refused(client, version_dir):
    channel, _ = client
    engine = opened(channel, version_dir)
    with pytest.raises(
        ServiceFault, match="found 10001 shapes to prepare for, expected at most 10000"
    ):
        answer(channel, {"do": "bind", "engine": engine, "largest": [{}] * 10_001})


def test_name_is_nothing_that_a_log_or_a_terminal_would_obey(shared_services):
    name = "\x1b[2Jx\n2026 WARNING y\ud800" + "z" * 1000
    channel, _ = shared_services.greet(role="client", name=name, weight=1.0, priority=0)
    (stats,) = (c for c in shared_services.stats()["clients"] if c["name"].startswith("?[2Jx"))
    assert stats["name"] == "?[2Jx?2026 WARNING y?" + "z" * (256 - 21)
    assert f"\n{name[:5]}" not in (shared_services.path / "cpu.log").read_text()
    channel.close()


def test_unexpected_descriptors_do_not_stay_open(shared_services, client):
    channel, _ = client
    pid = shared_services.pid()
    before = descriptors_of(pid)
    file = sealed_file("test", 4096)
    for _ in range(20):
        with pytest.raises(ServiceFault):
            answer(channel, {"do": "fly"}, [file, file])
    os.close(file)
    until(lambda: descriptors_of(pid) <= before, "the end of descriptors")


def test_more_descriptors_than_any_message_brings_are_not_had(shared_services, client):
    channel, _ = client
    pid = shared_services.pid()
    before = descriptors_of(pid)
    file = sealed_file("test", 4096)
    with pytest.raises(OutOfMemory, match="found more descriptors than a message may have"):
        answer(channel, {"do": "arena", "number": 1, "nbytes": 4096}, [file] * 50)
    until(lambda: descriptors_of(pid) <= before, "the end of descriptors")
    answer(channel, {"do": "arena", "number": 1, "nbytes": 4096}, [file])
    os.close(file)


def test_memory_beyond_all_addresses_is_not_had(client):
    channel, _ = client
    file = sealed_file("test", 2**56)
    with pytest.raises(OutOfMemory, match=r"the device service: .*Cannot allocate memory"):
        answer(channel, {"do": "arena", "number": 1, "nbytes": 2**56}, [file])
    os.close(file)


def test_large_message_that_is_too_large_or_not_sealed_is_refused(client):
    channel, _ = client
    huge = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.ftruncate(huge, MOST_LARGE_BYTES + 1)
    fcntl.fcntl(huge, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    channel.send(framed(Kind.LARGE, b""), [huge])
    os.close(huge)
    until_gone(channel)


INPUTS = [(1, 0, (1, 4)), (1, 64, (1, 4))]
OUTPUT = (0, (1, 128, (1, 4)))


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        ([(9, 0, (1, 4)), INPUTS[1]], [OUTPUT]),
        ([(1, 4096, (1, 4)), INPUTS[1]], [OUTPUT]),
        ([(1, 0, (2**40, 2**40)), INPUTS[1]], [OUTPUT]),
        ([(1, 2**64 - 64, (1, 4)), INPUTS[1]], [OUTPUT]),
        ([(1, 3, (1, 4)), INPUTS[1]], [OUTPUT]),
        ([(NOWHERE, 0, (1, 4)), INPUTS[1]], [OUTPUT]),
        (INPUTS[:1], [OUTPUT]),
        ([*INPUTS, INPUTS[0]], [OUTPUT]),
        (INPUTS, [OUTPUT, OUTPUT]),
        (INPUTS, [(7, OUTPUT[1])]),
        (INPUTS, [(0, (2, 128, (1, 4)))]),
    ],
)
def test_executions_on_foreign_memory_are_refused_one_by_one(
    shared_services, client, version_dir, inputs, outputs
):
    channel, welcome = client
    engine = opened(channel, version_dir)
    descriptor = sealed_file("test", 4096)
    answer(channel, {"do": "arena", "number": 1, "nbytes": 4096}, [descriptor])
    os.close(descriptor)
    runs, _ = shared_services.greet(role="run", client=welcome["client"], engine=engine)
    for layout, refused in (
        (pack_layout(inputs, outputs), True),
        (b"\xff" * 40, True),
        (pack_layout(INPUTS, [OUTPUT]), False),
    ):
        runs.send(pack_run(1, 1.0, layout))
        kind, body = runs.receive(patience())
        done = unpack_done(body)
        assert kind is Kind.DONE
        if refused:
            assert done.fault[0] == "ServiceFault"
            assert done.fault[1].startswith("the device service refuses an execution: found")
        else:
            assert done.fault is None
    with pytest.raises(ServiceFault, match="second connection"):
        shared_services.greet(role="run", client=welcome["client"], engine=engine)
    runs.send(framed(Kind.DONE, b""))
    until_gone(runs)
    runs.close()


def test_output_of_a_wrong_shape_writes_nothing_beyond_it(shared_services, client, version_dir):
    channel, welcome = client
    engine = opened(channel, version_dir)
    descriptor = sealed_file("test", 4096)
    answer(channel, {"do": "arena", "number": 1, "nbytes": 4096}, [descriptor])
    runs, _ = shared_services.greet(role="run", client=welcome["client"], engine=engine)
    os.pwrite(descriptor, b"\7" * 512, 128)
    inputs = [(1, 0, (2, 4)), (1, 64, (2, 4))]
    for shape in ((1, 4), (2, 2), (8,), ()):
        runs.send(pack_run(1, 1.0, pack_layout(inputs, [(0, (1, 128, shape))])))
        _, body = runs.receive(patience())
        assert unpack_done(body).fault[0] == "EngineFault"
    assert os.pread(descriptor, 512, 128) == b"\7" * 512
    os.close(descriptor)
    runs.close()


@pytest.mark.brute_force
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_other_users_are_not_served_even_where_they_can_reach_the_socket(services):
    backend = ServiceBackend("cpu", "client")
    services.path.chmod(0o707)  # others could not even connect otherwise
    (services.path / "cpu.sock").chmod(0o606)
    code = (
        "import os, socket; os.setgroups([]); os.setgid(65534); os.setuid(65534);"
        "s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.settimeout(30);"
        "s.connect('cpu.sock'); print(s.recv(1000))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=services.path, capture_output=True)
    services.path.chmod(0o700)
    assert done.stdout == b"b''\n" or b"reset by peer" in done.stderr
    assert "user 65534 is refused" in (services.path / "cpu.log").read_text()
    backend.close()


pytestmark = pytest.mark.brute_force

STAYS = {"inputs": {}, "outputs": {}, "rows": 8, "reads": 1, "lease_s": 60, "spare_s": 5}
EMBEDDING = {"embedding": ["encoder", "FP32", [4]]}


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
