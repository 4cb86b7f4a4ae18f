"""`ge-runtime probe-device`: all probes in child processes, on a simulated card."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runtime.support.ascend import ENVIRONMENT, SITE
from runtime.support.fakes import FAKES

from ge_runtime import cli
from ge_runtime.child_process import ChildResult, Outcome
from ge_runtime.cli.command import EXIT_UNUSABLE
from ge_runtime.cli.probe_device import run_checks, session
from ge_runtime.cli.probe_device.checks import CHECKS
from ge_runtime.cli.probe_device.exact_graphs import (
    exact_input,
    rolled,
    rolling_conv,
    rolling_matmul,
)
from ge_runtime.cli.probe_device.session import run_probe

pytestmark = pytest.mark.brute_force

BY_NUMBER = {check.number: check for check in CHECKS}


@pytest.fixture(scope="module")
def environment():
    with pytest.MonkeyPatch.context() as patch:
        for variable, first in ENVIRONMENT.items():
            patch.setenv(variable, first, prepend=os.pathsep)
        patch.setenv("ASCEND_SIMULATOR_HBM_MIB", "8192")
        yield patch


TESTS = str(Path(__file__).parents[2])
WARM = """
import json, os, runpy, sys, types
sys.path.append(sys.argv.pop())
import ascend_simulator, numpy, onnx, onnxruntime, ge_runtime.cli.probe_device.checks
from runtime.support.ascend import compile_in_process
compile_in_process(types.SimpleNamespace(setattr=setattr))
start = os.environ["PYTHONPATH"].split(":")
for line in sys.stdin:
    output, environment, arguments = json.loads(line)
    if not (child := os.fork()):
        os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT), 1)
        os.dup2(1, 2)
        os.environ.clear()
        os.environ.update(environment)
        rest = [path for path in sys.path if path not in start]
        sys.path[:] = [*environment["PYTHONPATH"].split(":"), *rest]
        sys.argv[1:] = arguments
        runpy.run_module("ge_runtime.cli.probe_device", run_name="__main__")
    print(os.waitpid(child, 0)[1], flush=True)
"""
"""A process that forks for each line: the modules of a probe take longer to import than it runs."""


@pytest.fixture(scope="module")
def run_fork(environment, tmp_path_factory):
    """Return a replacement of `run_command` that runs a probe in a fork with this environment."""
    output = tmp_path_factory.mktemp("probes") / "output"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}

    def run_fork(command, timeout_s):
        output.unlink(missing_ok=True)
        line = json.dumps([str(output), dict(os.environ), command[3:]])
        print(line, file=warm.stdin, flush=True)
        status = os.waitstatus_to_exitcode(int(warm.stdout.readline()))
        outcome = {0: Outcome.DONE, 1: Outcome.FAILED}.get(status, Outcome.CRASHED)
        error = {0: "", 1: "failed"}.get(status, f"signal {-status}")
        return ChildResult(outcome, stdout=output.read_text(), error=error)

    with subprocess.Popen([sys.executable, "-c", WARM, TESTS], **pipes) as warm:
        yield run_fork


@pytest.fixture
def in_forks(run_fork, monkeypatch):
    monkeypatch.setattr(session, "run_command", run_fork)


@pytest.fixture(scope="module")
def ask_fork(run_fork):
    """Return a function that runs checks in forks; modules of a folder replace others."""

    def ask(checks, path=""):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(session, "run_command", run_fork)
            patch.setenv("PYTHONPATH", str(path), prepend=os.pathsep)
            return list(run_checks(checks, device=0, risky=True, timeout_s=120))

    return ask


@pytest.fixture(scope="module")
def results(ask_fork):
    """Return the result of every question, by number."""
    return {result.check.number: result for result in ask_fork(CHECKS)}


def run(*arguments):
    return cli.main(["probe-device", *map(str, arguments)])


# The simulator's answers; a device may answer otherwise.
ANSWERS = {
    1: r"refused: \[model.busy\] execute: model 1: still executing on another stream",
    2: "500002 for too few inputs, 500002 for an input 128 bytes short; .* is right",
    3: "results by alignment: 64: right, 128: right, 256: right",
    4: "query_size returns 107002 without a device",
    5: "waiting returns 507046, waiting again 0, execute_async then 0 and 0; its result is right",
    6: "neither: load_with_config returns 0; WITHOUT_GRAPH_INT32: set_config_opt returns 100000; "
    ".*",
    7: "the other process is right; afterwards this process is right",
    8: r"acl can be imported with python 3\.\d+\.\d+, numpy .*",
    9: r"longest pause of another thread: mdl\.execute \d+% of \d+ ms; .*",
    10: "torchair cannot be imported: .*",
    11: "yes: results right {1: True, 4: True, 8: True}, the other model's True; .*",
    12: r"submitting, and with the wait: same [\d.]+ us and [\d.]+ us; alternating .*; updated .*",
    13: "ge.ge_global cannot be imported: .*",
    14: r"call and wait: not registered: .*; host_register MAPPED: [\d.]+ ms and [\d.]+ ms; .*",
    15: r"tensors x, ascend_mbatch_shape_data, to_y:0:y; gears \(1, 4, 8\), input \(-1, 64\); "
    r".*: True; initially .*: True; results right: \[True, True, True\]",
    16: "the process held 0 MiB; .* s after its end 0 MiB are still allocated",
    17: "ge.graph cannot be imported: .*",
    18: r"tensors x, ascend_mbatch_shape_data, to_y:0:y; gears \(\(8, 32\), \(64, 16\)\), input "
    r"\(1, 16, -1, -1\); .* gear: True; initially .*: True; results right: \[True, True\]",
    19: r"refused: \[memory\.unknown\] .*",
    20: r"input \[1, 16, 16, 3\], inputs of \[768\] bytes, AIPP type 1; parameters are as they "
    "were set: True; a pixel is rounded once",
    21: r"input \[1, 16, 16, 3\], inputs of \[384\] bytes, AIPP type 1; largest difference, "
    "shifted without rounding: 0, to the nearest: 1",
    22: r"input \[1, 16, 16, 3\], inputs of \[768, 160\] bytes, AIPP type 2; results right with "
    r"parameters set once: \[True, True\]",
    23: "9216 bytes are predicted for 64x48; largest error of brightness 0 decoded, 0 resized",
    24: "16 files, 5 folders deep; 16 of 16 layers by their names, 0 operators of other names; the "
    "last layer is right",
    25: r"2 file\(s\) in PROF_\.\.\.: device_0, host",
    26: r"dims \[-1, 64\], ranges \[\[1, 8\], \[64, 64\]\], input 2048 and output 2048 bytes; "
    r"an output of address 0 gets memory, its dims \[5, 64\], right",
}


@pytest.mark.slow
@pytest.mark.parametrize("number", BY_NUMBER)
def test_answer_of_the_simulator(results, number):
    result = results[number]
    assert result.outcome == "answered", result
    assert re.fullmatch(ANSWERS[number], result.answer), result.answer
    assert "release" not in result.evidence
    assert result.evidence.get("as_expected", True)
    json.dumps(result.evidence)


OTHERWISE = {
    2: (
        """
real = mdl.execute_async
mdl.execute_async = lambda *given: {500002: 145000}.get(code := real(*given), code)
""",
        "145000 for too few inputs, 145000 for an input 128 bytes short; .* is right",
    ),
    3: (
        """
real = mdl.load_from_file_with_mem
mdl.load_from_file_with_mem = lambda path, work, *more: (
    (0, 107008) if work % 512 else real(path, work, *more)
)
""",
        "results by alignment: 64: 107008",
    ),
    4: ("mdl.query_size = lambda path: (1, 1, 0)", "query_size returns 0 without a device"),
    5: (
        """
wait, execute = rt.synchronize_stream_with_timeout, mdl.execute_async
def waited(*given):
    code = wait(*given)
    if code == 507046:
        mdl.execute_async = lambda *given: 0  # accepted, but never executed
    return code
rt.synchronize_stream_with_timeout = waited
""",
        "waiting returns 507046, waiting again 0, execute_async then 0 and 0; its result is wrong",
    ),
    19: (
        """
import ascend_simulator
malloc, buffer, blocks = rt.malloc, create_data_buffer, set()
def kept(*given):
    blocks.add((answer := malloc(*given))[0])
    return answer
def create_data_buffer(address, nbytes):
    if address - 2**44 in blocks:  # the buffer of the execution that must fail
        ascend_simulator.current().faults.arm("execute@1=507015")
        address -= 2**44
    return buffer(address, nbytes)
rt.malloc = kept
""",
        "execute_async and the wait return 0 and 507015; then in the same stream 0 and 0, right; "
        "in a new context, with the model loaded again, 0 and 0, right",
    ),
    15: (
        "mdl.get_cur_output_dims = mdl.get_output_dims",
        r"tensors x, .*; output dims follow the gear: False; initially .*: True; results right: .*",
    ),
}
"""Another behaviour of a device, as a change of the simulator's `acl`, and its answer."""


@pytest.mark.slow
@pytest.mark.parametrize("number", OTHERWISE)
def test_answer_of_a_device_with_another_behaviour(ask_fork, tmp_path, number):
    change, answer = OTHERWISE[number]
    simulator = (SITE / "acl" / "__init__.py").read_text()
    (tmp_path / "acl.py").write_text(f"{simulator}\n{change}")
    (result,) = ask_fork([BY_NUMBER[number]], tmp_path)
    assert result.outcome == "answered", result
    assert re.fullmatch(answer, result.answer), result.answer
    assert not re.fullmatch(ANSWERS[number], result.answer)


def test_a_broken_package_is_an_answer(monkeypatch, ask_fork, tmp_path):
    """torch_npu up to 2.1 exits without CANN."""
    (tmp_path / "torch_npu.py").write_text("import sys; sys.exit()")
    (tmp_path / "torch_npu-2.1.0.dist-info").mkdir()
    about = "Metadata-Version: 2.1\nName: torch_npu\nVersion: 2.1.0\n"
    (tmp_path / "torch_npu-2.1.0.dist-info" / "METADATA").write_text(about)
    (tmp_path / "x86_64-linux").mkdir()
    (tmp_path / "x86_64-linux" / "ascend_toolkit_install.info").write_text("version=9.0.0\n")
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path))
    monkeypatch.setenv("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    (result,) = ask_fork([BY_NUMBER[8]], tmp_path)
    assert result.outcome == "answered", result
    assert "torch_npu 2.1.0, import fails: ImportError('SystemExit: ')" in result.answer
    assert result.answer.endswith(", cann 9.0.0")


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (13, "it has all names that are used"),
        (
            17,
            r"exact as integers: yes; directly float32: \[0\.1, 0\.333333, 0\.0, .*; "
            r"bool_?: ValueError, Invalid item: 'true'",
        ),
    ],
)
def test_answers_about_an_installed_ge_py(ask_fork, number, expected):
    (result,) = ask_fork([BY_NUMBER[number]], FAKES)
    assert result.outcome == "answered", result
    assert re.fullmatch(expected, result.answer), result.answer


def test_risky_questions_are_skipped_by_default(environment):
    risky = [check for check in CHECKS if check.risk]
    found = list(run_checks(risky, device=0, risky=False, timeout_s=1))
    assert [result.check.number for result in found] == [1, 3, 14, 19]
    for result in found:
        assert result.outcome == "skipped"
        assert result.answer == f"needs --risky: {result.check.risk}"


def test_the_report_names_the_simulator_and_the_file_has_all_results(in_forks, tmp_path, capsys):
    file = tmp_path / "probed.json"
    assert run("--only", 2, 4, "--json", file) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(
        "Asking AscendSimulator. It is a simulator: its answers are only assumptions.\n"
    )
    assert printed.count("    the simulator  ") == 2
    written = json.loads(file.read_text())
    assert (written["soc"], written["simulated"]) == ("AscendSimulator", True)
    assert written["machine"].keys() == {"system", "python", "numpy", "acl", "compiler"}
    assert [each["number"] for each in written["questions"]] == [2, 4]
    for each in written["questions"]:
        check = BY_NUMBER[each["number"]]
        assert (each["question"], each["assumed"]) == (check.question, check.assumed)
        assert (each["outcome"], each["answered_by"]) == ("answered", "AscendSimulator")
        assert each["evidence"]


def test_the_command_needs_a_device(monkeypatch, environment, capsys):
    monkeypatch.setenv("ASCEND_SIMULATOR_DEVICES", "0")
    assert run() == EXIT_UNUSABLE
    assert "found no Ascend device (207004). `ge-runtime doctor" in capsys.readouterr().err


def test_an_unknown_card_is_refused(environment, capsys):
    assert run("--device", 1) == EXIT_UNUSABLE
    assert "--device: found 1, expected 0 to 0" in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_refused_before_the_first_question(
    environment, tmp_path, capsys
):
    file = tmp_path / "nowhere" / "probed.json"
    assert run("--only", 4, "--json", file) == EXIT_UNUSABLE
    assert capsys.readouterr() == ("", f"ge-runtime: {file}: No such file or directory\n")


def test_the_command_needs_pyacl(monkeypatch, capsys):
    monkeypatch.setenv("PYTHONPATH", "")
    assert run() == EXIT_UNUSABLE
    assert "found no Ascend device (absent)" in capsys.readouterr().err


def test_a_failed_question_exits_with_1(monkeypatch, in_forks, capsys):
    monkeypatch.setenv("ASCEND_SIMULATOR_FAULTS", "malloc@1=207001")
    assert run("--only", 2) == 1
    printed = capsys.readouterr().out
    assert "    failed   acl.rt.malloc: 207001 ACL_ERROR_RT_MEMORY_ALLOCATION, too" in printed


def test_a_probe_that_hangs_is_killed(environment, tmp_path):
    result = run_probe("holds_memory", 0, tmp_path, 0.5)
    assert result == ("hung", "no answer within 0.5 s", {})


def test_the_output_of_a_crashed_probe_is_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", "")
    outcome, answer, evidence = run_probe("versions", 0, tmp_path, 60)
    assert outcome == "died"
    assert answer == "the process ended: ModuleNotFoundError: No module named 'acl'"
    assert "No module named 'acl'" in evidence["printed"]


def test_a_probe_that_ends_by_a_signal(monkeypatch, in_forks, tmp_path):
    (tmp_path / "acl.py").write_text("import os; os.kill(os.getpid(), 9)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    outcome, answer, _ = run_probe("versions", 0, tmp_path, 60)
    assert (outcome, answer) == ("died", "the process ended: signal 9")


def test_a_release_that_hangs_does_not_lose_the_answer(monkeypatch, tmp_path):
    ended = ChildResult(Outcome.TIMED_OUT, stdout='a log\nprobed: ["answered", "yes", {}]\n')
    monkeypatch.setattr(session, "run_command", lambda command, timeout_s: ended)
    result = run_probe("versions", 0, tmp_path, 20)
    assert result == ("answered", "yes", {"release": "no end within 20 s"})


def test_an_exception_of_a_probe_is_reported_with_its_traceback(in_forks, tmp_path):
    outcome, answer, evidence = run_probe("no_such_probe", 0, tmp_path, 60)
    assert (outcome, answer) == ("failed", "KeyError('no_such_probe')")
    assert "Traceback" in evidence["traceback"]


@settings(max_examples=25, deadline=None)
@given(
    rows=st.integers(1, 9), width=st.integers(1, 33), layers=st.integers(1, 5), geared=st.booleans()
)
def test_a_matmul_graph_rolls_columns(rows, width, layers, geared):
    check(rolling_matmul(rows, width, layers, gears=(rows, rows + 1) if geared else ()), rows)


@pytest.mark.parametrize("channels", [1, 3, 16])
def test_a_conv_graph_rolls_channels_at_any_size(channels):
    graph = rolling_conv(channels)
    for gear in graph.gears:
        check(graph, gear)


def check(graph, gear):
    content = graph.onnx_file()
    onnx.checker.check_model(onnx.load_from_string(content), full_check=True)
    reference = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    x = exact_input(graph.shape(gear))
    (y,) = reference.run(["y"], {"x": x})
    np.testing.assert_array_equal(y, rolled(x, graph.layers))
    assert np.array_equal(x, x.astype(np.float16))
