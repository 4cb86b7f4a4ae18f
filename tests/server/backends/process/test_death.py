"""Tests of processes that die: failed requests, health and restarts."""

import os
import signal
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from server.backends import kit
from server.backends.process.mortal import HERE, MORTAL, UNHEALTHY, Start, asks, said
from server.backends.process.watching import await_end
from server.support.requests import Answers
from support.waiting import until

from reference_server.backends.process_host import process
from reference_server.backends.process_host.instance import Backoff
from reference_server.core.errors import ServerError, internal

pytestmark = pytest.mark.brute_force


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("exit", "exited with code 3"),
        ("segfault", "was ended by SIGSEGV"),
        ("kill", "was ended by SIGKILL"),
    ],
)
def test_requests_in_flight_fail_and_the_instance_comes_back(start: Start, health, how, reason):
    instance = start(MORTAL)
    assert kit.execution_error(instance, asks(how), asks("other")) == UNHEALTHY
    assert health.next() == HERE + reason
    assert health.next() == ""
    assert said(instance, "again") == [b"again"]


def test_a_process_that_closes_its_connection_is_killed(start, health, monkeypatch):
    monkeypatch.setattr(process, "_EXIT_S", 0.1)
    instance = start(MORTAL)
    assert kit.execution_error(instance, asks("shuts")) == UNHEALTHY
    assert health.next() == HERE + "was ended by SIGKILL"
    assert health.next() == ""


def test_the_model_is_unready_before_a_failure_is_delivered(start: Start, health):
    instance = start(MORTAL, backoff=lambda: Backoff(first_s=600))
    kit.execution_error(instance, asks("exit"))
    assert health.reason == HERE + "exited with code 3"
    instance.close()


def test_a_death_between_requests_is_noticed_and_the_next_request_is_answered(start, health):
    instance = start(MORTAL)
    os.kill(instance.pid, signal.SIGKILL)
    assert health.next() == HERE + "was ended by SIGKILL"
    assert said(instance, "well") == [b"well"]


def test_a_death_is_noticed_although_a_child_survives(start: Start, health):
    """The model's forked child holds all sockets and pipes."""
    instance = start(
        kit.executing(
            "import os, time",
            "child = os.fork()",
            "if child == 0: time.sleep(60)",
            "text = np.array([str(child)], object)",
            "return [pb_utils.InferenceResponse([pb_utils.Tensor('TEXT', text)])]",
        )
    )
    forked = int(kit.said(instance))
    os.kill(instance.pid, signal.SIGKILL)
    assert health.next() == HERE + "was ended by SIGKILL"
    os.kill(forked, signal.SIGKILL)


def test_signals_are_left_to_the_server(start: Start, health):
    instance = start(MORTAL)
    os.kill(instance.pid, signal.SIGINT)
    os.kill(instance.pid, signal.SIGTERM)
    assert said(instance, "well") == [b"well"]
    assert health.changes.empty()


def test_a_stopped_process_is_killed_and_its_requests_fail(start: Start, health, monkeypatch):
    monkeypatch.setattr(process, "_CHECK_S", 0.01)
    instance = start(MORTAL)
    assert kit.execution_error(instance, asks("stop")) == UNHEALTHY
    stopped = HERE + "was stopped by a signal, and then killed"
    assert (health.next(), health.next()) == (stopped, "")
    os.kill(instance.pid, signal.SIGSTOP)  # without a request
    assert (health.next(), health.next()) == (stopped, "")
    assert said(instance, "well") == [b"well"]


def test_a_process_that_is_stopped_for_a_moment_is_not_killed(monkeypatch):
    kills = []
    child = process.ChildProcess("m_0", lambda _: None)
    child._process = SimpleNamespace(pid=7, kill=lambda: kills.append(len(looks)))
    looks = [True, True, False, True, True, True, True]
    monkeypatch.setattr(process, "is_stopped", lambda pid: looks.pop(0))
    for _ in range(7):
        child._check()
    assert kills == [1]


@pytest.mark.parametrize("how", ["hang", "stop"])
def test_an_execution_may_be_limited_in_time(start: Start, health, how):
    instance = start(MORTAL, limit_s=0.5)
    assert kit.execution_error(instance, asks(how)) == (
        kit.FAILED + "the execution took longer than 0.5 s, and its process was ended."
    )
    assert health.next() == HERE + "was ended by SIGKILL"
    assert health.next() == ""


def test_without_restarts_all_requests_fail_and_the_model_stays_ready(start: Start, health):
    instance = start(MORTAL, restarts=False)
    assert kit.execution_error(instance, asks("exit")) == UNHEALTHY
    assert kit.execution_error(instance, asks("well")) == UNHEALTHY
    assert health.reason == ""
    assert instance.pid is None


def test_open_requests_of_a_dead_process_fail(start: Start):
    """The batch has a request with its final response, one with its first, and one without."""
    source = kit.executing(
        "import os",
        "def reply(word): return pb_utils.InferenceResponse([pb_utils.Tensor('TEXT', "
        "np.array([word], object))])",
        "senders = [request.get_response_sender() for request in requests]",
        "senders[0].send(reply('whole'), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)",
        "senders[1].send(reply('part'))",
        "os._exit(0)",
    )
    instance = start(source, is_decoupled=True)
    sinks = [Answers() for _ in range(3)]
    requests = [kit.request() for _ in sinks]
    for request, sink in zip(requests, sinks, strict=True):
        request.sink = sink
    execution = instance.execute(requests)
    assert execution.failed
    assert execution.responses == [None] * 3
    whole = sinks[0].wait()
    assert whole.final
    assert kit.outputs(whole) == {"TEXT": [b"whole"]}
    assert kit.outputs(sinks[1].wait()) == {"TEXT": [b"part"]}
    for sink in sinks[1:]:
        last = sink.wait()
        assert last.final
        assert str(last.error) == UNHEALTHY
    assert all(sink.is_empty for sink in sinks)


def test_requests_to_be_answered_later_fail_with_the_process(start: Start):
    source = kit.executing("self.senders = [request.get_response_sender() for request in requests]")
    instance = start(source, is_decoupled=True)
    request = kit.request()
    sink = request.sink = Answers()
    assert instance.execute([request]).responses == [None]
    os.kill(instance.pid, signal.SIGKILL)
    last = sink.wait()
    assert last.final
    assert str(last.error) == UNHEALTHY


def test_a_failed_start_is_logged_and_repeated(start: Start, health, tmp_path):
    flag = tmp_path / "flag"
    source = MORTAL.replace(
        "    def execute",
        "    def initialize(self, args):\n"
        "        import os\n"
        f"        if os.path.exists({str(flag)!r}): raise ValueError('not yet')\n\n"
        "    def execute",
    )
    instance = start(source, backoff=lambda: Backoff(first_s=0.1, limit_s=0.1))
    flag.touch()
    os.kill(instance.pid, signal.SIGKILL)
    assert health.next() == HERE + "was ended by SIGKILL"
    assert kit.execution_error(instance, asks("x")) == UNHEALTHY
    assert health.next().startswith(HERE + "was ended by SIGKILL; then: ValueError: not yet\n")
    flag.unlink()
    while health.next():
        pass
    assert said(instance, "again") == [b"again"]


def test_closing_does_not_wait_for_the_next_start(start: Start, health):
    instance = start(MORTAL, backoff=lambda: Backoff(first_s=600))
    os.kill(instance.pid, signal.SIGKILL)
    health.next()
    instance.close()
    assert instance.pid is None


def test_a_model_that_ends_its_process_while_it_starts_cannot_be_loaded(make, caplog):
    instance = make("import os\nos._exit(4)")
    with pytest.raises(ServerError) as caught:
        instance.open()
    assert caught.value.described() == f"Internal: {UNHEALTHY}"
    assert f"{HERE}exited with code 4 while it was starting" in caplog.text


def test_a_crash_prints_the_models_line(start: Start, health, capfd):
    instance = start(MORTAL)
    kit.execution_error(instance, asks("segfault"))
    instance.close()
    lines = capfd.readouterr().err.splitlines()
    assert "[m_0_0] Fatal Python error: Segmentation fault" in lines
    assert any(line.startswith("[m_0_0] ") and "model.py" in line for line in lines)


def test_the_process_ends_with_the_instance(start: Start):
    instance = start(MORTAL)
    pid = instance.pid
    instance.close()
    await_end(pid)


@pytest.mark.parametrize("function", ["memfd_create", "pidfd_open"])
def test_a_process_that_the_system_refuses_is_an_error(make: Start, monkeypatch, function):
    def refuse(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    instance = make(kit.IDENTITY)
    with monkeypatch.context() as patch:
        patch.setattr(os, function, refuse)
        with pytest.raises(ServerError) as caught:
            instance.open()
    assert str(caught.value) == (
        "'m_0_0': cannot start a process: [Errno 38] Function not implemented"
    )


def descriptors() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


def test_a_closed_instance_leaves_no_descriptor_open(make: Start):
    instance = make(kit.IDENTITY)
    instance.open()
    threads = threading.active_count()
    instance.close()
    instance.open()
    opened = descriptors()
    for _ in range(3):
        instance.close()
        instance.open()
    until(lambda: descriptors() <= opened, "the end of its descriptors")
    until(lambda: threading.active_count() <= threads, "the end of its threads")
    instance.close()


# ---------------------------------------------------------------------- before it serves again


def test_an_instance_that_was_started_again_is_prepared_before_it_serves(start: Start, health):
    prepared = []

    def prepare(started):
        assert instance.pid is None
        assert health.reason == HERE + "exited with code 3"
        assert said(started, "prepared") == [b"prepared"]
        prepared.append(started.name)

    instance = start(MORTAL, prepare=prepare)
    assert prepared == []
    kit.execution_error(instance, asks("exit"))
    assert said(instance, "again") == [b"again"]
    assert prepared == ["m_0_0"]


def test_a_failed_preparation_is_a_failed_start(start: Start, health):
    failures = [internal("a sample failed")]

    def prepare(started):
        if failures:
            raise failures.pop()

    instance = start(MORTAL, prepare=prepare)
    kit.execution_error(instance, asks("exit"))
    assert health.next() == HERE + "exited with code 3"
    assert health.next() == HERE + "exited with code 3; then: a sample failed"
    assert health.next() == ""
    assert said(instance, "again") == [b"again"]


def test_requests_of_a_preparation_fail_if_the_process_dies(start: Start, health):
    """The preparation waits for the last response."""
    source = kit.executing(
        "import os",
        "if pb_utils.get_input_tensor_by_name(requests[0], 'HOW').as_numpy().item() == b'exit':",
        "    os._exit(3)",
        "global promised",
        "promised = [request.get_response_sender() for request in requests]",
        "return None",
    )
    errors = []

    def prepare(started):
        if not errors:
            late = asks("later")
            answers = late.sink = Answers()
            started.execute([late])
            with pytest.raises(ServerError):
                started.execute([asks("exit")])
            errors.append(answers.wait().error.message)

    instance = start(source, prepare=prepare, is_decoupled=True)
    os.kill(instance.pid, signal.SIGKILL)
    assert health.next() == HERE + "was ended by SIGKILL"
    assert health.next() == HERE + f"was ended by SIGKILL; then: {UNHEALTHY}"
    assert health.next() == ""
    assert errors == [UNHEALTHY]
