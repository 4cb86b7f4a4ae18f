"""Tests of calls between a process and the server during an execution."""

import queue
import threading
from collections.abc import Callable

import pytest
from server.backends import kit
from server.support.requests import PATIENCE_S, Answers

from reference_server.backends.process_host.instance import ProcessInstance
from reference_server.core.backlog import Backlog, Backlogs
from reference_server.core.errors import ServerError, unavailable
from reference_server.core.request import InferRequest, InferResponse
from reference_server.core.tensor import Tensor

pytestmark = [
    pytest.mark.brute_force,
    pytest.mark.parametrize("host", ["process"], indirect=True),
]

Start = Callable[..., ProcessInstance]


class Asked:
    """A server that records the calls of models, and answers as the test requires."""

    def __init__(self) -> None:
        self.requests: queue.SimpleQueue[InferRequest] = queue.SimpleQueue()
        self.halted: list[InferRequest] | None = None
        self.loaded: list[tuple[object, ...]] = []

    def is_decoupled(self, name: str, version: int) -> bool:
        return name == "many"

    def is_ready(self, name: str, version: int) -> bool:
        if name == "defect":
            raise ZeroDivisionError("a defect")
        return version != 1

    def infer(self, request: InferRequest, halted: list[InferRequest] | None = None) -> None:
        self.halted = halted
        if request.model_name == "missing":
            raise unavailable("no such model")
        self.requests.put(request)

    def load(self, *what: object, initializing: bool) -> None:
        self.loaded.append((*what, initializing))

    def unload(self, name: str, *, unload_dependents: bool, initializing: bool) -> None:
        self.loaded.append((name, unload_dependents, initializing))

    def next(self) -> InferRequest:
        return self.requests.get(timeout=PATIENCE_S)


@pytest.fixture
def asked() -> Asked:
    return Asked()


def executing(instance: ProcessInstance, request: InferRequest) -> threading.Thread:
    """Execute on a separate thread; returned responses go to the sink too."""

    def execute() -> None:
        (response,) = instance.execute([request]).responses
        if response is not None:
            request.sink.send(response)

    request.sink = Answers()
    thread = threading.Thread(target=execute)
    thread.start()
    return thread


ASKS = (
    "ask = pb_utils.InferenceRequest(model_name='other', requested_output_names=['OUT'],"
    " inputs=requests[0].inputs(), request_id='mine', timeout=7)",
)
RETURN_RESULT = (
    "return [pb_utils.InferenceResponse("
    "[pb_utils.Tensor('TEXT', np.array([str(result)], object))])]"
)


def answered(request: InferRequest) -> InferResponse:
    outputs = [Tensor("OUT", t.datatype, t.shape, array=t.array()) for t in request.inputs.values()]
    return InferResponse(request.model_name, 1, request.id, outputs)


def test_a_model_calls_another_model(open_model: Start, asked):
    lines = (
        *ASKS,
        "answer = ask.exec()",
        "result = pb_utils.get_output_tensor_by_name(answer, 'OUT').as_numpy().sum()",
        RETURN_RESULT,
    )
    instance = open_model(kit.executing(*lines), calls=asked)
    request = kit.request(IN=[1.0, 2.0])
    thread = executing(instance, request)
    other = asked.next()
    assert (other.model_name, other.id, other.timeout_us) == ("other", "mine", 7)
    assert other.requested_outputs == ("OUT",)
    assert asked.halted == [request]
    other.sink.send(answered(other))
    assert kit.outputs(request.sink.wait()) == {"TEXT": [b"3.0"]}
    thread.join()


def test_an_error_of_a_call_arrives_with_its_text(open_model: Start, asked):
    lines = (
        "ask = pb_utils.InferenceRequest(model_name='missing', requested_output_names=['OUT'],"
        " inputs=[])",
        "result = ask.exec().error().message()",
        RETURN_RESULT,
    )
    instance = open_model(kit.executing(*lines), calls=asked)
    assert "no such model" in kit.said(instance)


def test_a_model_sees_that_its_request_is_cancelled(open_model: Start):
    lines = ("while not requests[0].is_cancelled(): pass", "result = 'seen'", RETURN_RESULT)
    instance = open_model(kit.executing(*lines))
    request = kit.request()
    thread = executing(instance, request)
    request.cancellation.cancel()
    assert kit.outputs(request.sink.wait()) == {"TEXT": [b"seen"]}
    thread.join()


def test_a_model_waits_for_a_client_that_does_not_read(open_model: Start, asked: Asked):
    result = threading.Event()

    class Watched(Backlog):
        def watch(self, watcher: Callable[[bool], None]) -> None:
            super().watch(watcher)
            result.set()

    backlog = Watched(Backlogs(limit=10))
    backlog.keep(11)
    happened: list[str] = []

    def is_ready(name: str, version: int) -> bool:
        """Answer after the process has received the full backlog."""
        assert result.wait(PATIENCE_S)
        happened.append(name)
        if name == "9":
            backlog.close()
        return True

    asked.is_ready = is_ready
    instance = open_model(
        kit.executing(
            "import threading",
            "sender = requests[0].get_response_sender()",
            "pb_utils.is_model_ready('0')",
            "sending = threading.Thread(target=sender.send, args=(",
            "    pb_utils.InferenceResponse([]), 1))",
            "sending.start()",
            "for number in range(1, 10): pb_utils.is_model_ready(str(number))",
            "sending.join()",
        ),
        calls=asked,
        is_decoupled=True,
    )
    request = kit.request()
    request.cancellation.backlog = backlog
    request.sink = Noting(happened)
    thread = threading.Thread(target=lambda: instance.execute([request]))
    thread.start()
    thread.join(PATIENCE_S)
    assert happened == [*map(str, range(10)), "a response"]


class Noting:
    """A sink that records responses."""

    def __init__(self, happened: list[str]) -> None:
        self.happened = happened

    def send(self, response: InferResponse) -> None:
        self.happened.append("a response")


def test_an_answered_request_is_not_watched(open_model: Start):
    instance = open_model(kit.executing("result = 1", RETURN_RESULT))
    request = kit.request()
    instance.execute([request])
    assert not request.cancellation._watchers


@pytest.mark.usefixtures("host")
def test_requests_of_a_dead_process_are_cancelled(start: Start, asked):
    instance = start(kit.executing(*ASKS, "ask.exec()"), calls=asked)
    request = kit.request(IN=[1.0])
    failed = threading.Event()

    def execute() -> None:
        with pytest.raises(ServerError, match="not healthy"):
            instance.execute([request])
        failed.set()

    thread = threading.Thread(target=execute)
    thread.start()
    other = asked.next()
    cancelled = threading.Event()
    other.cancellation.watch(cancelled.set)
    instance._child.kill()
    assert cancelled.wait(PATIENCE_S)
    thread.join()
    assert failed.is_set()
    other.sink.send(answered(other))  # without a receiver


def test_models_use_model_control(open_model: Start, asked):
    lines = (
        "pb_utils.load_model('x', '{}', {'file:1/model.py': b'code\\x00', 'file:2': b''})",
        "pb_utils.unload_model('y', True)",
        "result = [pb_utils.is_model_ready('there', '2'), pb_utils.is_model_ready('there', '1')]",
        RETURN_RESULT,
    )
    instance = open_model(kit.executing(*lines), calls=asked)
    assert kit.said(instance) == "[True, False]"
    assert asked.loaded == [
        ("x", "{}", {"file:1/model.py": b"code\0", "file:2": b""}, False),
        ("y", True, False),
    ]


def test_a_defect_of_the_server_does_not_leave_a_model_waiting(open_model: Start, asked, caplog):
    lines = (
        "try: result = pb_utils.is_model_ready('defect')",
        "except pb_utils.TritonModelException as error: result = error",
        RETURN_RESULT,
    )
    instance = open_model(kit.executing(*lines), calls=asked)
    assert "ZeroDivisionError: a defect" in kit.said(instance)
    assert "a call of a model's process failed" in caplog.text


def test_responses_of_one_sender_keep_their_order(open_model: Start):
    lines = (
        "import threading",
        "def send(sender):",
        "    for number in range(50):",
        "        text = pb_utils.Tensor('TEXT', np.array([str(number)], object))",
        "        sender.send(pb_utils.InferenceResponse([text]))",
        "    sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)",
        "for request in requests:",
        "    threading.Thread(target=send, args=(request.get_response_sender(),)).start()",
    )
    instance = open_model(kit.executing(*lines), is_decoupled=True)
    requests = [kit.request(id=str(number)) for number in range(4)]
    for request in requests:
        request.sink = Answers()
    assert instance.execute(requests).responses == [None] * 4
    for request in requests:
        results = [request.sink.wait() for _ in range(51)]
        assert [kit.outputs(answer)["TEXT"] for answer in results[:-1]] == [
            [str(number).encode()] for number in range(50)
        ]
        assert (results[-1].final, results[-1].empty) == (True, True)
        assert {answer.id for answer in results} == {request.id}


def test_models_run_on_the_main_thread(open_model: Start):
    lines = (
        "import threading, signal, sys",
        "signal.signal(signal.SIGUSR1, lambda *_: None)",
        "result = [threading.current_thread() is threading.main_thread(), sys.argv]",
        RETURN_RESULT,
    )
    assert kit.said(open_model(kit.executing(*lines))) == "[True, ['']]"


def test_a_model_may_keep_its_tensors(open_model: Start):
    """The memory of a tensor is reused only when the model has dropped the tensor."""
    lines = (
        "kept = self.__dict__.setdefault('kept', [])",
        "kept.append(requests[0].inputs()[0].as_numpy())",
        "result = [array.tolist() for array in kept]",
        "if len(kept) == 3: del kept[:]",
        RETURN_RESULT,
    )
    instance = open_model(kit.executing(*lines))
    results = [kit.said(instance, IN=[float(number)] * 2) for number in range(4)]
    assert results[2] == "[[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]]"
    assert results[3] == "[[3.0, 3.0]]"


class Trace:
    """A trace that knows its parent."""

    context = ""

    def __init__(self, parent: object = None) -> None:
        self.parent = parent
        self.is_closed = False

    def child(self) -> "Trace":
        return Trace(self)

    def close(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize("is_traced", [True, False])
def test_requests_on_behalf_of_a_traced_request_are_traced(open_model: Start, asked, is_traced):
    lines = (
        "trace = requests[0].trace()",
        "ask = pb_utils.InferenceRequest(model_name='other', requested_output_names=['OUT'],"
        " inputs=requests[0].inputs(), trace=trace)",
        "result = ask.exec().has_error()",
        RETURN_RESULT,
    )
    instance = open_model(kit.executing(*lines), calls=asked)
    request = kit.request(IN=[1.0])
    request.trace = Trace() if is_traced else None
    thread = executing(instance, request)
    other = asked.next()
    assert (other.trace.parent if is_traced else other.trace) is request.trace
    other.sink.send(answered(other))
    assert kit.outputs(request.sink.wait()) == {"TEXT": [b"False"]}
    thread.join()
