"""Response senders, streams and cancellation: both servers on models that execute scripts.

Each script is compared with its row on the real server. Then both servers are compared: messages on
a gRPC stream, bytes over HTTP, and statistics.
"""

from __future__ import annotations

import json
import queue
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
import tritonclient.grpc as plain_client
from contract import casebook
from contract.decoupled_play import agrees, message, opened, posted, streamed, text, told
from contract.decoupled_scripts import (
    AGAIN,
    BAD,
    END,
    ITERATIONS,
    LAST,
    PAIRS,
    RAISE,
    SCRIPTS,
    TOLD_OTHERWISE,
    A,
    B,
    Script,
    write_scripted,
)
from contract.grpc_casebook import ANSWER_SECONDS, Outcome, byte_strings, call, infer, tensor
from contract.serving import both_servers
from contract.wire import connect, exchange, index
from support.perf_analyzer import measured
from support.servers import COMPLETE, Server
from support.waiting import until
from tritonclient.grpc import service_pb2 as pb

pytestmark = pytest.mark.oracle

EXPLICIT = COMPLETE | {
    "model_control_mode": "explicit",
    "load_model": ["*"],
    "allow_metrics": False,
}
TWICE = b'{"error":"expected a single response, got 2"}'
EMPTY_FINAL = {"triton_enable_empty_final_response": True}
ALL = [*SCRIPTS, *ITERATIONS]
ALIKE = [script for script in ALL if str(script) not in TOLD_OTHERWISE]
OTHERWISE = [script for script in ALL if script not in ALIKE]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the models to one folder for both servers, so that paths in messages are equal."""
    folder = tmp_path_factory.mktemp("scripted") / "repository"
    write_scripted(folder)
    return folder


triton, reference = both_servers(**EXPLICIT)


@pytest.fixture(params=["triton", "reference"])
def server(request: pytest.FixtureRequest) -> Server:
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def both(triton: Server, reference: Server) -> tuple[Server, Server]:
    return triton, reference


# --------------------------------------------------------------------------------------- scripts


@pytest.mark.parametrize("script", ALL, ids=str)
def test_the_real_server_tells_what_the_table_says(script: Script, triton: Server):
    found = told(streamed(triton, message(script.model, script.source)))
    assert agrees(found, script.told), found


@pytest.mark.parametrize("asks", [False, True], ids=["", "empty final"])
@pytest.mark.parametrize("script", ALIKE, ids=str)
def test_both_servers_stream_alike(script: Script, asks: bool, both: tuple[Server, Server]):
    given = EMPTY_FINAL if asks else {}
    real, ours = (
        streamed(server, message(script.model, script.source, **given)) for server in both
    )
    assert str(ours) == str(real)
    assert ours == real


@pytest.mark.parametrize("script", OTHERWISE, ids=str)
def test_what_is_told_otherwise_here(script: Script, reference: Server):
    found = told(streamed(reference, message(script.model, script.source)))
    assert found == TOLD_OTHERWISE[str(script)]
    assert found != script.told


@pytest.mark.parametrize("way", ["generate", "generate_stream"])
@pytest.mark.parametrize("script", ALL, ids=str)
def test_both_servers_generate_alike(script: Script, way: str, both: tuple[Server, Server]):
    path = f"/v2/models/{script.model}/{way}"
    real, ours = (posted(server, path, {"script": script.source, "id": "q"}) for server in both)
    assert ours == real


@pytest.mark.parametrize("script", ALL, ids=str)
def test_both_servers_infer_alike(script: Script, both: tuple[Server, Server]):
    shape = [1, 1] if script.model.startswith("iterative") else [1]
    inputs = [{"name": "script", "datatype": "BYTES", "shape": shape, "data": [script.source]}]
    path = f"/v2/models/{script.model}/infer"
    real, ours = (posted(server, path, {"inputs": inputs, "id": "q"}) for server in both)
    if TWICE in real:  # it stands behind the first response there, which makes no JSON
        assert ours.startswith(b"HTTP/1.1 500 ")
        assert ours.endswith(b"\r\n\r\n" + TWICE)
        assert real.startswith(b"HTTP/1.1 500 ")
    else:
        assert ours == real


@pytest.mark.parametrize("pair", PAIRS)
def test_requests_of_one_batch(pair: str, server: Server):
    model, sources, expected = PAIRS[pair]
    outcome = streamed(
        server, *(message(model, source, str(n)) for n, source in enumerate(sources))
    )
    for number, messages in enumerate(expected):
        assert agrees(told(outcome, str(number)), messages), outcome


#: Sends both outputs, which an ensemble waits for, and raises.
BOTH = """
sender.send(pb_utils.InferenceResponse(
    [pb_utils.Tensor(name, np.array([b"a"], object)) for name in ("said", "also")]))
"""


@pytest.mark.parametrize("model", ["ordinary", "wrapped"])
def test_an_error_after_the_one_response(model: str, both: tuple[Server, Server]):
    failing = message(model, BOTH + RAISE)
    streams = [streamed(server, failing, message(model, BOTH + END, "2")) for server in both]
    unary = []
    for server in both:
        with grpc.insecure_channel(server.grpc) as channel:
            unary.append(call("ModelInfer", failing).put(channel))
    for real, ours in (streams, unary):
        assert ours.messages[:1] == real.messages[:1]
        assert (ours.code, ours.details) == (real.code, real.details)
    assert ids(streams[1]) == ids(streams[0]) == ["i", "2"]
    assert unary[1].details == "expected a single response, got 2"


# --------------------------------------------------------------------------------------- streams


def ids(outcome: Outcome) -> list[str]:
    """Return the ids of the received messages, in order."""
    return [each.infer_response.id for each in outcome.messages]


def test_decoupled_answers_overtake_the_others(server: Server):
    requests: queue.SimpleQueue[pb.ModelInferRequest | None] = queue.SimpleQueue()
    with grpc.insecure_channel(server.grpc) as channel:
        stream = opened(channel, iter(requests.get, None))
        requests.put(message("paired_ordinary", "answer = say('x')", "1"))  # waits for another
        requests.put(message("decoupled", A + LAST, "2"))
        order = [next(stream).infer_response.id for _ in range(2)]
        requests.put(message("paired_ordinary", "answer = say('y')", "3"))
        requests.put(None)
        order += [each.infer_response.id for each in stream]
    assert order == ["2", "2", "1", "3"]


def test_refusals_of_a_decoupled_model(both: tuple[Server, Server]):
    refused = infer("decoupled", tensor("nobody", "BYTES", [1]), raw=[byte_strings(b"")], id="r")
    real, ours = (streamed(server, refused, message("decoupled", LAST)) for server in both)
    assert ours == real
    assert ids(ours) == ["r", "i"]


def test_coroutines_run_side_by_side(server: Server):
    waits = "await kept.setdefault('event', asyncio.Event()).wait()\nsender.send(say('{}'), FINAL)"
    opens = "sender.send(say('c'), FINAL)\nkept.pop('event').set()"
    outcome = streamed(
        server,
        message("asynchronous", waits.format("a"), "a"),
        message("asynchronous", waits.format("b"), "b"),
        message("asynchronous", opens, "c"),
    )
    assert sorted(ids(outcome)) == ["a", "b", "c"]
    assert ids(outcome)[0] == "c"


# ----------------------------------------------------------------------------------- cancellation

#: Waits until it is cancelled, keeps what it saw, and goes on as if it were not.
WATCH = """
import time
def f():
    end = time.monotonic() + 60
    while not (sender.is_cancelled() and request.is_cancelled()) and time.monotonic() < end:
        time.sleep(0.001)
    seen = [str(sender.is_cancelled()), str(request.is_cancelled())]
    sender.send(say('unheard'))
    sender.send(flags=FINAL)
    kept['seen'] = seen
later(f)
"""
#: The same where execute returns the response.
WATCH_AND_RETURN = """
import time
end = time.monotonic() + 60
while not request.is_cancelled() and time.monotonic() < end:
    time.sleep(0.001)
kept['seen'] = [str(request.is_cancelled())]
answer = say('unheard')
"""
SEEN = """
import time
while 'seen' not in kept:
    time.sleep(0.001)
{}say(*kept.pop('seen')){}
"""


def seen(server: Server, model: str = "decoupled") -> str:
    """Return what the model saw during the previous request."""
    source = (
        SEEN.format("answer = ", "")
        if model == "ordinary"
        else SEEN.format("sender.send(", ", FINAL)")
    )
    ((found, _),) = told(streamed(server, message(model, source)))
    return found


def test_cancelling_a_stream_cancels_its_requests(server: Server):
    with grpc.insecure_channel(server.grpc) as channel:
        stream = opened(channel, iter([message("decoupled", A + WATCH)]))
        next(stream)
        stream.cancel()
        assert seen(server) == "True True"


def test_a_deadline_cancels(server: Server):
    """The deadline passes after the request has begun, which takes longer on a busy machine."""
    for seconds in (2, 10, 30):
        heard = []
        with grpc.insecure_channel(server.grpc) as channel:
            stream = opened(channel, iter([message("decoupled", A + WATCH)]), timeout=seconds)
            with pytest.raises(grpc.RpcError, match="DEADLINE_EXCEEDED"):
                heard.extend(stream)
        if heard:
            break
    assert seen(server) == "True True"


@pytest.fixture
def bell() -> Iterator[socket.socket]:
    """Open the socket on which a model reports its start."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(ANSWER_SECONDS)
        yield listener


def ringing(bell: socket.socket, source: str) -> str:
    return f"import socket\nsocket.create_connection({bell.getsockname()!r}).close()\n{source}"


def test_cancelling_a_unary_call(bell: socket.socket, server: Server):
    with grpc.insecure_channel(server.grpc) as channel:
        method = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer", pb.ModelInferRequest.SerializeToString
        )
        waiting = method.future(message("ordinary", ringing(bell, WATCH_AND_RETURN)))
        bell.accept()[0].close()
        waiting.cancel()
        assert seen(server, "ordinary") == "True"


@pytest.mark.parametrize("way", ["generate", "generate_stream"])
def test_a_client_that_leaves_after_the_first_response(way: str, server: Server):
    body = json.dumps({"script": A + WATCH}).encode()
    with connect(server.http) as connection:
        connection.sendall(casebook.post(f"/v2/models/decoupled/{way}", body))
        assert connection.recv(1000).startswith(b"HTTP/1.1 200 OK")
    assert seen(server) == "True True"


@pytest.mark.parametrize(("which", "is_cancelled"), [("triton", "False"), ("reference", "True")])
def test_a_broken_connection_cancels_only_here(
    which: str, is_cancelled: str, bell: socket.socket, request: pytest.FixtureRequest
):
    """To the real server it makes no difference before the first response."""
    server = request.getfixturevalue(which)
    source = ringing(bell, WATCH_AND_RETURN.replace("+ 60", "+ 1" if which == "triton" else "+ 60"))
    with connect(server.http) as connection:
        tensor = {"name": "script", "datatype": "BYTES", "shape": [1], "data": [source]}
        body = json.dumps({"inputs": [tensor]}).encode()
        connection.sendall(casebook.post("/v2/models/ordinary/infer", body))
        bell.accept()[0].close()
        # Closed like this, it is not just the end of what the client has to say.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert seen(server, "ordinary") == is_cancelled


def test_a_client_that_stops_sending_gets_the_answer_to_what_runs_here(
    bell: socket.socket, reference: Server
):
    """The real server closes such a connection at once and does not notify the model."""
    source = ringing(bell, WATCH_AND_RETURN)
    with connect(reference.http) as connection, connection.makefile("rb") as stream:
        body = json.dumps({"script": source}).encode()
        connection.sendall(casebook.post("/v2/models/ordinary/generate", body) * 2)
        bell.accept()[0].close()
        connection.shutdown(socket.SHUT_WR)
        assert stream.read().count(b'"said":"unheard"') == 1
    assert seen(reference, "ordinary") == "True"


# ---------------------------------------------------------------------- what hangs the real server

DROPPED = "The model has dropped the request: found no complete response"
NOT_ITERATIVE = "while the model is not configured to handle such a flag."
#: By what is done: the model, the script, and the message that only this server sends.
ENDS_HERE = {
    "nothing": ("decoupled", "pass", DROPPED),
    "nothing, ordinary": ("ordinary", "pass", DROPPED),
    "no end": ("decoupled", A, DROPPED),
    "no end, ordinary": ("ordinary", A, DROPPED),
    "again without iterations": ("decoupled", AGAIN, NOT_ITERATIVE),
    "again without iterations, ordinary": ("ordinary", AGAIN, NOT_ITERATIVE),
    "sends and returns": ("ordinary", A + "answer = say('b')", "more than one response."),
    "a coroutine raises": ("asynchronous", "raise ValueError('broken')", "ValueError: broken"),
    "a coroutine lets go": ("asynchronous", "pass", DROPPED),
}


@pytest.mark.parametrize("what", ENDS_HERE)
def test_a_request_that_would_hang_ends_with_an_error(what: str, reference: Server):
    model, source, expected = ENDS_HERE[what]
    *_, (found, is_final) = told(streamed(reference, message(model, source)))
    assert expected in found
    assert is_final


# ------------------------------------------------------------------------------------- the clients


def script_input(source: str, client: object = plain_client) -> plain_client.InferInput:
    """Return the input of a request for NVIDIA's clients."""
    given = client.InferInput("script", [1], "BYTES")
    given.set_data_from_numpy(np.array([source.encode()], dtype=object))
    return given


def test_the_stream_of_the_plain_client(server: Server):
    answers: queue.SimpleQueue = queue.SimpleQueue()
    with plain_client.InferenceServerClient(server.grpc) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        client.async_stream_infer(
            "decoupled",
            [script_input(A + BAD + B + END)],
            request_id="7",
            enable_empty_final_response=True,
        )
        first, failed, second, end = (answers.get(timeout=ANSWER_SECONDS) for _ in range(4))
        client.stop_stream()
    assert [first[0].as_numpy("said").tolist(), second[0].as_numpy("said").tolist()] == [
        [b"a"],
        [b"b"],
    ]
    assert str(failed[1]) == "bad"
    response = end[0].get_response()
    assert (response.id, response.parameters["triton_final_response"].bool_param) == ("7", True)
    assert end[0].as_numpy("said") is None


def test_perf_analyzer_streams_a_decoupled_model(tmp_path: Path, reference: Server):
    data = tmp_path / "data.json"
    data.write_text(json.dumps({"data": [{"script": [A + B + END]}]}))
    measured(reference, "grpc", "-m", "decoupled", "--streaming", "--input-data", str(data))


# ----------------------------------------------------------------------------------- the very last


def test_unloading_waits_for_the_last_response(
    bell: socket.socket, server: Server, reference: Server
):
    """Last, since the model is gone then."""
    late = f"""
import socket
def f():
    with socket.create_connection({bell.getsockname()!r}) as bell:
        bell.recv(1)
    sender.send(say('late'), FINAL)
later(f)
"""
    with grpc.insecure_channel(server.grpc) as channel:
        stream = opened(channel, iter([message("decoupled", late)]))
        ring, _ = bell.accept()
        unload = casebook.post("/v2/repository/models/decoupled/unload", b"{}")
        assert exchange(server.http, unload).replies[0].status == 200
        assert index(server.http)["decoupled"]["state"] == "UNLOADING"
        ring.close()
        assert [text(each.infer_response) for each in stream] == ["late"]
    if server is reference:  # the real one was seen to take its time for the rest
        until(lambda: index(server.http)["decoupled"]["state"] == "UNAVAILABLE")
