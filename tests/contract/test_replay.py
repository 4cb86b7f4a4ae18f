"""`triton-replay` between clients and both servers: no byte changes, and everything is recorded."""

import itertools
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import tritonclient.grpc as client
from contract.casebook import binary, infer, infer_binary, nothing, tensor
from contract.cases import real_models
from contract.wire import exchange
from support.perf_analyzer import measured
from support.replaying import command, environment, recording
from support.waiting import until
from tritonclient.utils import InferenceServerException

from triton_replay.__main__ import main
from triton_replay.capture.files import CaptureWriter, read_capture

pytestmark = pytest.mark.oracle

SERVERS = ["triton", "reference"]


@pytest.fixture(params=SERVERS)
def server(request):
    return request.getfixturevalue(request.param)


def test_what_passes_the_recorder_is_the_same_by_the_byte(server, tmp_path):
    path = tmp_path / "a.trc"
    # Answers whose order varies are excluded.
    cases = [case for case in real_models.CASES if case.unstable is nothing]
    with recording(server.http, path) as recorder:
        for case in cases:
            direct = exchange(server.http, case.request, replies=case.replies)
            assert exchange(recorder.address, case.request, replies=case.replies) == direct
    assert recorder.returncode == 0, recorder.stderr_text
    capture = read_capture(path)
    assert capture.complaint == ""
    statuses = {e.response.status for e in capture.exchanges}
    assert {200, 400, 404} <= statuses
    # Each case, followed by a liveness check on the same connection.
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
    assert "the recorder was killed" in capture.complaint


def test_what_one_server_was_asked_both_answer_alike(triton, reference, tmp_path, capsys):
    captures = [tmp_path / name for name in ("recorded.trc", "triton.trc", "reference.trc")]
    refused = [case.request for case in real_models.CASES if case.status == 400]
    with recording(triton.http, captures[0], grpc=triton.grpc) as recorder:
        for request in [*good_requests(), *refused]:
            exchange(recorder.address, request)
        ask_over_grpc(recorder.grpc)
    for server, path in zip((triton, reference), captures[1:], strict=True):
        addresses = ("--server", server.http, "--grpc-server", server.grpc)
        words = ("replay", captures[0], *addresses, "--output", path, "--speed=max")
        done = subprocess.run(command(*words), env=environment(), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "not sent" not in done.stderr
        statuses = {e.status for e in read_capture(path).exchanges}
        assert statuses == {"200", "400", "grpc 0", "grpc 5"}
    for a, b in itertools.combinations(captures, 2):
        code = main(["compare", str(a), str(b), "--tolerance=abs=1e-4"])
        assert code == 0, capsys.readouterr().out
        assert f"{len(read_capture(a).exchanges)} requests compared" in capsys.readouterr().out


def test_a_generated_load_gets_the_same_answers_from_both_servers(
    triton, reference, tmp_path, capsys
):
    sizes, load, first, second = (tmp_path / name for name in ("sizes.csv", "l.trc", "a", "b"))
    sizes.write_text("side,count\n8,5\n12,1\n")
    words = ("--model=ge_classifier", "--input=image:FP32:1,1,side,side", f"--sizes={sizes}")
    assert main(["generate", f"--output={load}", *words]) == 0
    for server, output in ((triton, first), (reference, second)):
        options = (f"--server={server.http}", f"--output={output}", "--speed=max")
        assert main(["replay", str(load), *options]) == 0
    assert main(["compare", str(first), str(second), "--tolerance=abs=1e-4"]) == 0
    assert {e.response.status for e in read_capture(second).exchanges} == {200}


def test_a_capture_of_one_server_is_a_pytest_case_for_the_other(triton, reference, tmp_path):
    path, out = tmp_path / "a.trc", tmp_path / "out"
    with recording(triton.http, path) as recorder:
        for request in good_requests():
            exchange(recorder.address, request)
    assert main(["export", str(path), f"--output={out}", "--pytest"]) == 0
    options = (f"--triton-server={reference.http}", "--triton-tolerance=abs=1e-4")
    code, output = run_tests_of(out, *options)
    assert (code, output.count(" PASSED ")) == (0, len(read_capture(path).exchanges)), output
    # One answer differs: its test fails, and the other tests pass.
    change_status(path, out / "recorded.trc", number=2)
    code, output = run_tests_of(out, *options)
    assert code == 1
    assert re.findall(r"\[(.*)\] FAILED ", output) == ["2-text_pipeline"]
    assert "kind='status'" in output
    code, output = run_tests_of(out)
    assert code == 0
    assert "no --triton-server" in output


def run_tests_of(folder, *options):
    """Run exported tests in a separate process, as users do; return exit code and output."""
    words = (sys.executable, "-m", "pytest", "-v", "-rs", "-p", "no:cacheprovider")
    done = subprocess.run(
        [*words, f"--rootdir={folder}", "-c", os.devnull, folder, *options],
        env=environment(),
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout + done.stderr


def change_status(source, target, *, number):
    """Copy a capture with status 404 for the answer with this number."""
    capture = read_capture(source)
    target.unlink()
    writer = CaptureWriter.create(target)
    writer.write([capture.opening])
    for one in capture.exchanges:
        same = one.request.number != number
        answer = one.response if same else replace(one.response, status=404)
        writer.write([one.request, answer])
    writer.write([capture.closing])
    writer.close()


def test_perf_analyzer_sends_what_was_exported(triton, tmp_path):
    path, out = tmp_path / "a.trc", tmp_path / "out"
    with recording(triton.http, path) as recorder:
        for request in good_requests():
            exchange(recorder.address, request)
    assert main(["export", str(path), f"--output={out}"]) == 0
    files = (f"--input-data={out / 'text_pipeline.json'}",)
    times = (f"--request-intervals={out / 'text_pipeline.intervals'}",)
    # On a busy machine the recorded intervals are longer than the usual window.
    window = ("--measurement-interval", "500")
    measured(triton, "http", "-m", "text_pipeline", *files, *times, *window)


TEXTS = ["a good day", "查询 快递", "my parcel has not arrived " * 20, ""]
PIXELS = np.random.default_rng(0).uniform(0, 1, (4, 1, 12, 20)).astype("<f4")


def ask_over_grpc(address):
    """Send requests over gRPC, the last one to a model that does not exist."""
    texts = np.array([text.encode() for text in TEXTS], object)
    with client.InferenceServerClient(address) as asking:
        for count in range(1, 5):
            for model, name, values in (
                ("text_pipeline", "text", texts[:count]),
                ("ge_classifier", "image", PIXELS[:count]),
            ):
                datatype = "BYTES" if values.dtype == object else "FP32"
                given = client.InferInput(name, values.shape, datatype)
                asking.infer(model, [given.set_data_from_numpy(values)], client_timeout=60)
        with pytest.raises(InferenceServerException, match="nobody"):
            asking.infer("nobody", [given], client_timeout=60)


def good_requests():
    """Return requests with English and Chinese texts and images, single and batched, in JSON
    and binary."""
    for count in range(1, len(TEXTS) + 1):
        yield infer("text_pipeline", tensor("text", "BYTES", [count], TEXTS[:count]))
        yield real_models.text_bytes(*(text.encode() for text in TEXTS[:count]))
    for count in range(1, 5):
        data = PIXELS[:count].tobytes()
        described = binary("image", "FP32", [count, 1, 12, 20], len(data))
        yield infer_binary("ge_classifier", data, described)
