"""The report at the end of a program, run in its own process."""

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from ascend_simulator import Settings, exit_report, report, reset_for_tests, violations
from ascend_simulator.violations import Origin

BEGIN = """\
import acl, sys
acl.init()
acl.rt.set_device(0)
"""
END = """\
acl.rt.reset_device(0)
acl.finalize()
"""
FREES_TWICE = """\
def release(ptr):
    try:
        acl.rt.free(ptr)
    except Exception:
        pass  # as many programs do with what they release

ptr, ret = acl.rt.malloc(64, 0)
for _ in range(3):
    release(ptr)
"""


@pytest.fixture
def run(tmp_path):
    """Run a program of these lines in its own folder, as program.py."""

    def run_(*parts, **settings):
        path = tmp_path / "program.py"
        path.write_text("".join(parts))
        site = str(Path(violations.__file__).parent / "site")
        return subprocess.run(
            [sys.executable, path],
            cwd=tmp_path,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([site, *sys.path]),
                **{f"ASCEND_SIMULATOR_{name}": value for name, value in settings.items()},
            },
            capture_output=True,
            text=True,
            timeout=60,
        )

    return run_


@pytest.mark.brute_force
@pytest.mark.parametrize("mode", ["strict", "lenient", "report"])
def test_the_report_names_rule_call_and_line(run, mode):
    done = run(BEGIN, FREES_TWICE, END, MODE=mode)
    ptr = "0xde000000000040"
    expected = dedent(
        f"""\
        Ascend simulator, mode {mode}: 1 violation
        [memory.bad-free] acl.rt.free, program.py:6 in release, 2 times
            free: {ptr}: found 64 bytes from {ptr} that were freed
        """
    )
    assert done.returncode == 0
    assert done.stderr.endswith(expected)
    warned = done.stderr.removesuffix(expected)
    assert ("SimulatorWarning" in warned) == (mode == "lenient")
    assert mode == "lenient" or not warned


@pytest.mark.brute_force
@pytest.mark.parametrize(("program", "code"), [(FREES_TWICE, 23), ("sys.exit(4)", 23)])
def test_a_violation_sets_the_configured_exit_code(run, program, code):
    done = run(BEGIN, "print('said')\n", program, MODE="report", EXIT_CODE="23")
    assert (done.returncode, done.stdout) == (code, "said\n")


@pytest.mark.brute_force
def test_a_violation_on_a_stream_names_the_submitting_line(run):
    program = """\
import ctypes
stream, ret = acl.rt.create_stream()
device, ret = acl.rt.malloc(64, 0)
pinned, ret = acl.rt.malloc_host(64)
acl.rt.memcpy_async(device, 64, pinned, 64, 1, stream)
ctypes.memset(pinned, 1, 64)
acl.rt.synchronize_stream(stream)
"""
    done = run(BEGIN, program, MODE="report", SEED="1")
    assert "[memcpy.source-changed] acl.rt.memcpy_async, program.py:8 in <module>" in done.stderr


@pytest.mark.brute_force
def test_a_missing_finalize_reports_leftovers(run):
    done = run(BEGIN, "acl.rt.create_stream()\n")
    assert done.returncode == 0
    assert done.stderr.splitlines()[1:] == [
        "[process.not-finalized] at the end of the program",
        "    acl.finalize() was not called; not released: stream 1, device 0 set",
    ]


@pytest.mark.brute_force
def test_leftovers_of_an_uncaught_exception_are_not_reported(run):
    done = run(BEGIN, "acl.rt.create_stream()\nraise RuntimeError('of the program')\n")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "RuntimeError: of the program"


@pytest.mark.brute_force
def test_a_forked_child_reports_only_its_own_findings(run):
    program = """\
import os
if os.fork() == 0:
    try:
        acl.rt.get_device_count()
    except AssertionError:
        sys.exit()
os.wait()
"""
    done = run(BEGIN, FREES_TWICE, program, END)
    assert [line for line in done.stderr.splitlines() if line.startswith("[")] == [
        "[process.forked] acl.rt.get_device_count, program.py:16 in <module>",
        "[memory.bad-free] acl.rt.free, program.py:6 in release, 2 times",
    ]


def test_tests_print_no_report_at_exit(capfd):
    reset_for_tests(Settings(mode="report"))
    violations.violate("memory.bad-free", "free: found it")
    exit_report.at_exit()
    assert capfd.readouterr() == ("", "")
    (finding,) = report().findings
    assert (finding.rule, finding.origin.function) == (
        "memory.bad-free",
        "test_tests_print_no_report_at_exit",
    )
    reset_for_tests(Settings())


def test_the_first_thousand_findings_are_kept_and_all_are_counted():
    reset_for_tests(Settings(mode="report"))
    for line in range(1500):
        violations.note("memory.bad-free", "", Origin("acl.rt.free", "x.py", line, "f"))
    assert len(report().findings) == 1000
    assert report().broken == {"memory.bad-free": 1500}
    reset_for_tests(Settings())
