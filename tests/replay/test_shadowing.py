"""Shadow traffic: requests to B, order, limits, and stored differences."""

import contextlib
import http.client
import itertools
import json
import os
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import grpc
import pytest
from replay.serving import ANSWER, serving
from support.http2 import message
from support.servers import free_ports
from support.waiting import until

from triton_replay.__main__ import main
from triton_replay.addresses import Address, Server
from triton_replay.capture.files import read_capture
from triton_replay.capture.records import Request, Response, StreamMessage
from triton_replay.comparing.differences import compare_answers
from triton_replay.comparing.tolerances import parse_tolerances
from triton_replay.shadowing import Shadow
from triton_replay.wire.grpc_messages import framed, messages

STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"


class Handler(BaseHTTPRequestHandler):
    """Answers each request with its body, once the gate is open."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.bodies.append((json.loads(body)["n"], self.headers.get("Authorization")))
        self.server.gate.wait(60)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Do not log."""


class Echo(ThreadingHTTPServer):
    daemon_threads = True


@pytest.fixture(scope="module")
def listening():
    with Echo(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def b(listening):
    """Return a server that answers each request with its body."""
    listening.bodies, listening.gate = [], threading.Event()
    listening.gate.set()
    return listening


class Sent:
    """A shadow of requests to `m`, and what it stored."""

    def __init__(self, address, *, keeps=lambda _: True, in_flight=4, memory=10**6):
        self.a, self.b, self.first = [], [], []
        tolerances = parse_tolerances([])
        self.shadow = Shadow(
            Server(address, address),
            lambda a, b: compare_answers("m", a, b, tolerances),
            keeps,
            self.a.append,
            self.b.append,
            on_difference=self.first.append,
            headers=(("Authorization", "new"),),
            timeout=60,
            clock=itertools.count(1).__next__,
            in_flight=in_flight,
            memory=memory,
        )
        self.shadow.start()

    def request(self, number, target="/v2/models/m/infer", padding=0, **parameters):
        fields = {"parameters": parameters} if parameters else {}
        body = json.dumps({"n": number, "padding": "x" * padding, **fields}).encode()
        headers = (("Authorization", "old"),)
        self.shadow.put(Request(number, 0, 0, 0, "POST", target, headers, len(body), body))
        return body

    def exchange(self, number, answer=None, ended="complete", **options):
        body = self.request(number, **options)
        body = body if answer is None else answer
        self.shadow.put(Response(number, 1, 1, 200, (), len(body), body, ended))


@contextlib.contextmanager
def shadow(b, **options):
    sent = Sent(Address(*b.server_address), **options)
    try:
        yield sent
    finally:
        b.gate.set()
        sent.shadow.close()


def test_only_different_responses_are_stored(b):
    with shadow(b) as sent:
        for number in range(4):
            sent.exchange(number)
        sent.exchange(4, answer=b'{"n": 7, "padding": ""}')
        sent.exchange(5, answer=b'{"n": 8, "padding": ""}')
    assert (sent.shadow.compared, sent.shadow.differing) == ({"m": 6}, {"m": 2})
    assert sent.shadow._bytes_freed == sent.shadow._bytes_put
    assert [type(one) for one in sent.a] == [Request, Response] * 2
    assert {one.number for one in sent.a} == {4, 5}
    answers = {one.number: json.loads(one.body)["n"] for one in sent.b if isinstance(one, Response)}
    assert answers == {4: 4, 5: 5}
    assert [one.output for one in sent.first] == ["n"]
    assert sum(sent.shadow.kinds.values()) == 2
    assert sent.shadow.counts == {}
    assert {header for _, header in b.bodies} == {"new"}


def test_the_reason_of_a_missing_response_is_counted():
    gone = SimpleNamespace(server_address=("127.0.0.1", *free_ports(1)), gate=threading.Event())
    with shadow(gone) as sent:
        sent.exchange(0)
    assert [one.kind for one in sent.first] == ["no complete response in B"]
    ((reason, count),) = sent.shadow.unanswered.items()
    assert (reason.partition(":")[0], count) == ("no connection", 1)


def test_requests_that_b_must_not_or_cannot_execute_are_counted(b):
    with shadow(b, keeps=lambda request: request.number) as sent:
        sent.exchange(0)
        sent.exchange(1, target="/v2/repository/models/m/load")
        sent.request(2, sequence_id=1)
        sent.exchange(3, ended="client")
        sent.request(4)
        sent.shadow.count("connections that could not be read as HTTP/1")
    assert sent.shadow.counts == {
        "requests that were not selected": 1,
        "requests that change the server": 1,
        "requests of sequences whose start was not sent to B": 1,
        "requests whose client disconnected from A": 1,
        "requests without response at the end": 1,
        "connections that could not be read as HTTP/1": 1,
    }
    assert (sorted(number for number, _ in b.bodies), sent.a) == ([3, 4], [])


def test_requests_of_a_sequence_reach_b_in_order(b):
    with shadow(b, in_flight=8) as sent:
        for number in range(30):
            flags = {"sequence_start": number < 2, "sequence_end": number >= 28}
            sent.exchange(number, sequence_id=1 + number % 2, **flags)
        sent.request(30, sequence_id=1)  # the sequence has ended
    for first in (0, 1):
        assert [n for n, _ in b.bodies if n % 2 == first] == [*range(first, 30, 2)]
    assert sent.shadow.counts == {"requests of sequences whose start was not sent to B": 1}


def test_memory_is_bounded_while_b_does_not_answer(b):
    b.gate.clear()
    with shadow(b, in_flight=1, memory=100_000) as sent:
        for number in range(30):
            sent.exchange(number, padding=10_000)  # never waits
    reason = "requests that exceeded --memory, because B is too slow"
    assert sent.shadow.counts == {reason: 26}
    assert sent.shadow.compared == {"m": 4}
    assert [number for number, _ in b.bodies] == [0, 1, 2, 3]
    assert sent.shadow._bytes_freed == sent.shadow._bytes_put


def test_a_request_whose_response_is_lost_is_not_compared(b):
    b.gate.clear()
    with shadow(b, in_flight=1, memory=20_000) as sent:
        for number in range(3):
            sent.exchange(number, answer=bytes(30_000))
    assert sent.shadow.counts == {"requests that exceeded --memory, because B is too slow": 3}
    assert [number for number, _ in b.bodies] in ([0], [])
    assert (sent.shadow.compared, sent.shadow._bytes_freed) == ({}, sent.shadow._bytes_put)


def test_a_sequence_is_not_continued_after_a_lost_record(b):
    with shadow(b, memory=20_000) as sent:
        sent.exchange(0, sequence_id=1, sequence_start=True)
        until(lambda: sent.shadow.compared["m"] == 1)
        sent.request(1, padding=30_000)
        sent.request(2, sequence_id=1)
    assert sent.shadow.counts["requests of sequences whose start was not sent to B"] == 1


def test_a_defect_is_counted_and_the_next_request_compared(b):
    with shadow(b) as sent:
        differ = sent.shadow.differ

        def broken(a, b):
            if not a.request.number:
                raise KeyError("shape")
            return differ(a, b)

        sent.shadow.differ = broken
        sent.exchange(0)
        sent.exchange(1)
    assert sent.shadow.compared == {"m": 1}
    assert sent.shadow.counts == {"requests that could not be compared: KeyError('shape')": 1}


class Doubling(grpc.GenericRpcHandler):
    """Answers each message of a stream with its model's name, twice for `two`."""

    def service(self, details):
        return grpc.stream_stream_rpc_method_handler(self.stream)

    def stream(self, requests, context):
        for request in requests:
            name = messages.ModelInferRequest.FromString(request).model_name
            answer = messages.ModelStreamInferResponse()
            answer.infer_response.model_name = name
            for _ in range(2 if name == "two" else 1):
                yield answer.SerializeToString()


def test_a_stream_is_sent_after_its_end_and_compared():
    with ThreadPoolExecutor(2) as pool:
        server = grpc.server(pool)
        server.add_generic_rpc_handlers((Doubling(),))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        sent = Sent(Address("127.0.0.1", port))
        for number, name in enumerate(("one", "two")):
            body = framed([messages.ModelInferRequest(model_name=name)])
            answer = messages.ModelStreamInferResponse()
            answer.infer_response.model_name = name
            answer = message(answer.SerializeToString())
            start = Request(number, 0, 0, 0, "POST", STREAM, (), len(body), body, protocol="grpc")
            sent.shadow.put(start)
            for is_sent, each in ((True, body), (False, answer), (False, answer)):
                sent.shadow.put(StreamMessage(number, is_sent, 0, len(each), each))
            trailers = (("grpc-status", "0"),)
            sent.shadow.put(Response(number, 1, 1, 200, (), 0, trailers=trailers))
        sent.shadow.close()
        server.stop(None).wait()
    assert sum(sent.shadow.compared.values()) == 2
    assert {one.number for one in sent.a} == {1}
    assert sum(isinstance(one, StreamMessage) and not one.sent for one in sent.b) == 4


def test_the_command_forwards_to_a_and_stores_differences(tmp_path, capsys, b):
    (port,) = free_ports(1)
    folder = tmp_path / "found"
    bodies = []

    def client():
        until(lambda: _accepts(port))
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        for number in range(3):
            body = json.dumps({"n": number})
            headers = {"Authorization": "secret"}
            connection.request("POST", "/v2/models/m/infer", body, headers)
            bodies.append(connection.getresponse().read())
        connection.close()
        until(lambda: len(b.bodies) == 3)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=client)
    thread.start()
    to = "{}:{}".format(*b.server_address)
    with serving() as a:
        where = [f"--server={a}", f"--b={to}", f"--listen=127.0.0.1:{port}"]
        words = ["shadow", *where, f"--output={folder}", "--memory=1MB"]
        assert main([*words, "--ignore=model_name", "--between=0:", "--rotate=1"]) == 1
        thread.join()
        assert bodies == [ANSWER] * 3
        assert main(words) == 2  # the captures exist
    out, err = capsys.readouterr()
    assert out.splitlines()[:2] == ["compared    differ  model", "       3         3  m"]
    assert "differs: text: m; '{" in err
    first, second = (read_capture(folder / f"{name}.trc") for name in "ab")
    assert [one.request.number for one in first.exchanges] == [0, 1, 2]
    assert {bytes(one.response.body) for one in first.exchanges} == {ANSWER}
    assert {json.loads(bytes(one.response.body))["n"] for one in second.exchanges} == {0, 1, 2}
    headers = dict(first.exchanges[0].request.headers)
    assert headers["Authorization"] == "redacted"
    assert {header for _, header in b.bodies} == {"secret"}
    assert main(["compare", str(first.name), str(second.name)]) == 1


def _accepts(port):
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False
