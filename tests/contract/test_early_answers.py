"""Answers sent right after their execution, on both servers: times, order and counters.

The model waits for a reply before each execution, so the test knows which executions have ended
when an answer arrives.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import onnx
import pytest
import tritonclient.grpc as grpc_client
from contract.probes import MODELS
from contract.runtime_models import ENCODES, batches_of, parameters
from contract.serving import both_servers
from contract.statistics_scripts import counters, moved_since, succeeded
from contract.wire import ANSWER_SECONDS
from runtime.support.graphs import ENCODER, TABLE, encode
from support.servers import COMPLETE, Server
from support.waiting import eventually

pytestmark = pytest.mark.oracle

SIZES = (1, 2, 4, 8)
"""Tokens of requests. Shortest first is fair in any order of arrival: see FAIRNESS."""

DECOUPLED = "model_transaction_policy { decoupled: true }\n"
FAILED = -1
"""The number of an answer that is an error on a stream, which has no request id."""

MODES = {
    "early": "",
    "late": parameters("early_answers: false"),
    "decoupled": DECOUPLED,
    "decoupled_late": DECOUPLED + parameters("early_answers: false"),
}


@pytest.fixture(scope="module")
def bell() -> Iterator[socket.socket]:
    """Open the socket at which models wait before each execution."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(ANSWER_SECONDS)
        yield listener


@pytest.fixture(scope="module")
def repository(bell: socket.socket, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("early")
    host, port = bell.getsockname()
    for name, more in MODES.items():
        version = folder / name / "1"
        version.mkdir(parents=True)
        onnx.save(ENCODER.onnx(), version / "model.onnx")
        (version / "model.py").write_bytes((MODELS / "stepped.py").read_bytes())
        # Executions of two requests would cost more than two of one.
        config = batches_of(len(SIZES)) + ENCODES + more
        config += parameters(f"""
            limit.tokens: 32
            cost: launch_us=100, element_ns=10000000, element2_ns=0
            warmup: none
            BELL: {host}:{port}
        """)
        (folder / name / "config.pbtxt").write_text('backend: "python"\n' + config)
    return folder


triton, reference = both_servers(**COMPLETE)


@pytest.fixture(params=["triton", "reference"])
def server(request: pytest.FixtureRequest) -> Server:
    server: Server = request.getfixturevalue(request.param)
    return server


class Asked:
    """Requests in progress, and a queue of their answers with the requests' numbers."""

    def __init__(self, server: Server, model: str, requests: Sequence[Sequence[int]]) -> None:
        self._client = grpc_client.InferenceServerClient(server.grpc)
        self.answers: SimpleQueue[tuple[int, object]] = SimpleQueue()
        self.calls = []
        streams = model.startswith("decoupled")
        if streams:
            self._client.start_stream(self._hear_stream)
        for number, tokens in enumerate(requests):
            given = grpc_client.InferInput("input_ids", [1, len(tokens)], "INT64")
            given.set_data_from_numpy(np.array([tokens]))
            if streams:
                self._client.async_stream_infer(model, [given], request_id=str(number))
            else:
                hear = partial(self._hear, number)
                self.calls.append(self._client.async_infer(model, [given], hear))

    def __enter__(self) -> Asked:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def next(self) -> tuple[int, object]:
        """Return the next answer: the request's number, and its embedding or its error."""
        return self.answers.get(timeout=ANSWER_SECONDS)

    def _hear(self, number: int, result: object, error: object) -> None:
        self.answers.put((number, str(error) if error else result.as_numpy("embedding")))

    def _hear_stream(self, result: object, error: object) -> None:
        number = FAILED if error else int(result.get_response().id)
        self._hear(number, result, error)


def may_execute(bell: socket.socket, before: Callable[[], None] = lambda: None) -> list[int]:
    """Let the next execution run, and return the sizes of its requests.

    before: called while the execution waits.
    """
    asking, _ = bell.accept()
    with asking:
        sizes = list(asking.recv(100))
        before()
        asking.sendall(b"!")
    return sizes


def rows(sizes: Sequence[int] = SIZES) -> list[list[int]]:
    return [[1 + size % 5] * size for size in sizes]


def right(answer: object, tokens: Sequence[int]) -> bool:
    np.testing.assert_allclose(answer, encode([tokens]), rtol=1e-5)
    return True


@pytest.mark.parametrize("model", ["early", "decoupled"])
def test_each_answer_leaves_with_its_execution_the_shortest_first(
    model: str, bell: socket.socket, server: Server
):
    sizes = [4, 1, 8, 2]
    with Asked(server, model, rows(sizes)) as asked:
        for size in sorted(sizes):
            assert may_execute(bell) == [size]
            number, answer = asked.next()  # no other execution has begun
            assert sizes[number] == size
            assert right(answer, rows(sizes)[number])
            assert asked.answers.empty()


@pytest.mark.parametrize("model", MODES)
def test_statistics_are_those_of_a_batch(model: str, bell: socket.socket, server: Server):
    before = counters(server.http, model)
    with Asked(server, model, rows()) as asked:
        for _ in SIZES:
            may_execute(bell)
            if "late" not in model:
                asked.next()
    wanted = succeeded(len(SIZES)) | {"execution_count": 1, f"batches of {len(SIZES)}": 1}
    del wanted["batches of 1"]
    assert eventually(lambda: moved_since(before, server.http, model), wanted) == wanted


def test_halves_of_an_execution_that_failed_are_answered_as_soon_as_they_are_there(
    bell: socket.socket, server: Server
):
    # The requests of a stream arrive in its order.
    requests = [[1], [2], [len(TABLE)], [4]]
    with Asked(server, "decoupled", requests) as asked:
        assert may_execute(bell) == [1, 1, 1, 1]  # of equal sizes: together
        assert may_execute(bell) == [1, 1]
        answers = dict(asked.next() for _ in range(2))
        assert sorted(answers) == [0, 1]
        assert may_execute(bell) == [1, 1]
        assert may_execute(bell) == [1]
        failed, fault = asked.next()
        assert failed == FAILED
        assert "onnxruntime: " in fault
        assert may_execute(bell) == [1]
        answers |= dict([asked.next()])
    assert all(right(answers[number], requests[number]) for number in (0, 1, 3))


def test_clients_that_cancel_harm_nobody(bell: socket.socket, server: Server):
    """One while it is executed, and one before.

    Of answers to them that are sent in two parts the real server dies.
    """
    sizes = [4, 1, 8, 2]
    with Asked(server, "early", rows(sizes)) as asked:

        def cancel() -> None:
            asked.calls[1].cancel()
            asked.calls[3].cancel()
            assert {asked.next()[0], asked.next()[0]} == {1, 3}

        assert may_execute(bell, cancel) == [1]
        sizes_executed = []
        while sizes_executed[-1:] != [8]:  # that of 2 may be, if the model hears of it too late
            sizes_executed += may_execute(bell)
        answers = dict(asked.next() for _ in range(2))
    assert all(right(answers[number], rows(sizes)[number]) for number in (0, 2))
    test_each_answer_leaves_with_its_execution_the_shortest_first("early", bell, server)
