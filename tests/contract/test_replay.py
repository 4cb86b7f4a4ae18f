"""`triton-replay` between clients and both servers: no byte differs, and all of it is recorded."""

import os
import signal
import subprocess

import pytest
from contract.casebook import nothing
from contract.cases import real_models
from contract.wire import exchange
from support.replaying import command, environment, recording
from support.waiting import until

from triton_replay.capture.reader import read_capture

pytestmark = pytest.mark.oracle

SERVERS = ["triton", "reference"]


@pytest.fixture(params=SERVERS)
def server(request):
    return request.getfixturevalue(request.param)


def test_what_passes_the_recorder_is_the_same_by_the_byte(server, tmp_path):
    path = tmp_path / "a.trc"
    # Answers that come in another order each time are left out.
    cases = [case for case in real_models.CASES if case.unstable is nothing]
    with recording(server.http, path) as recorder:
        for case in cases:
            direct = exchange(server.http, case.request, replies=case.replies)
            assert exchange(recorder.address, case.request, replies=case.replies) == direct
    assert recorder.returncode == 0, recorder.told
    capture = read_capture(path)
    assert capture.complaint == ""
    statuses = {e.response.status for e in capture.exchanges}
    assert {200, 400, 404} <= statuses
    # Each case and, behind it on the same connection, the question whether the server is live.
    assert len(capture.exchanges) >= len(cases)


def test_a_recorder_that_is_killed_leaves_what_it_has_recorded(reference, tmp_path):
    path = tmp_path / "a.trc"
    with recording(reference.http, path) as recorder:
        exchange(recorder.address, real_models.CASES[0].request)
        until(lambda: len(read_capture(path).exchanges) == 2)
        os.kill(recorder.process.pid, signal.SIGKILL)
        recorder.process.wait()
    capture = read_capture(path)
    assert all(e.response.status == 200 for e in capture.exchanges)
    assert "its recorder was killed" in capture.complaint


def test_what_one_server_was_asked_the_other_answers_alike(triton, reference, tmp_path):
    first, second = tmp_path / "a.trc", tmp_path / "b.trc"
    cases = [case for case in real_models.CASES if case.unstable is nothing]
    with recording(triton.http, first) as recorder:
        for case in cases:
            exchange(recorder.address, case.request, replies=case.replies)
    words = ("replay", first, "--server", reference.http, "--output", second, "--speed=max")
    done = subprocess.run(command(*words), env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    before, after = (statuses(path) for path in (first, second))
    assert before == after
    assert len(before) > len(cases)


def statuses(path):
    return {e.request.number: e.response.status for e in read_capture(path).exchanges}
