"""Commands in child processes."""

import os
import subprocess
import sys

import pytest
from runtime.support.services import wait_for_end

from ge_runtime.child_process import ChildResult, Outcome, run_command

pytestmark = pytest.mark.brute_force

GRANDCHILD = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
child.wait()
"""


def test_ctrl_c_ends_all_processes_of_the_command(monkeypatch):
    grandchildren = []
    communicate = subprocess.Popen.communicate

    def interrupted(process, *stdin, **timeout):
        if grandchildren:
            return communicate(process, *stdin, **timeout)
        grandchildren.append(int(process.stdout.readline()))
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess.Popen, "communicate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_command([sys.executable, "-c", GRANDCHILD], 60)
    wait_for_end(grandchildren[0])


def test_the_time_limit_ends_all_processes_of_the_command(tmp_path):
    """The grandchild keeps the pipes open; without the kill, reading them would block."""
    held = tmp_path / "held"
    os.mkfifo(held)
    reader = os.open(held, os.O_RDONLY | os.O_NONBLOCK)
    script = f"exec 3> {held}; (sleep 30; echo late >&3) & wait"
    assert run_command(["sh", "-c", script], timeout_s=0.5).outcome is Outcome.TIMED_OUT
    os.set_blocking(reader, True)
    assert os.read(reader, 9) == b""  # end of file: every writer has ended
    os.close(reader)


def test_output_before_the_time_limit_is_returned():
    result = run_command(["sh", "-c", "echo ready; sleep 30"], timeout_s=0.5)
    assert (result.outcome, result.error) == (Outcome.TIMED_OUT, "no end after 0.5 s")
    assert result.stdout == "ready\n"


def test_a_command_that_does_not_exist_is_absent(tmp_path):
    assert run_command([str(tmp_path / "npu-smi")]) == ChildResult(Outcome.ABSENT)


def test_a_file_that_is_not_executable_is_a_failure(tmp_path):
    file = tmp_path / "npu-smi"
    file.write_text("")
    result = run_command([str(file)])
    assert result.outcome is Outcome.FAILED
    assert "Permission denied" in result.error


@pytest.mark.parametrize(
    ("script", "outcome", "error"),
    [
        ("exit 0", Outcome.DONE, ""),
        ("exit 3", Outcome.FAILED, "exit code 3"),
        ("echo first; echo it is broken; exit 1", Outcome.FAILED, "it is broken"),
        ("echo unused; echo it is broken >&2; exit 1", Outcome.FAILED, "it is broken"),
        ("echo 'OSError: no card'; echo 12:00; exit 1", Outcome.FAILED, "OSError: no card"),
        ("kill -9 $$", Outcome.CRASHED, "signal 9"),
    ],
)
def test_the_outcome_and_error_of_a_command(script, outcome, error):
    result = run_command(["sh", "-c", script])
    assert (result.outcome, result.error) == (outcome, error)
