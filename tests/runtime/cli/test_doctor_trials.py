"""Programs in processes of their own."""

import subprocess
import sys

import pytest
from runtime.support.services import wait_for_end

from ge_runtime.cli.doctor.trials import Program

FAMILY = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
child.wait()
"""


@pytest.mark.brute_force
def test_what_a_program_has_started_ends_with_it_after_ctrl_c(monkeypatch):
    program = Program([sys.executable, "-c", FAMILY])
    child = int(program.line())

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess.Popen, "communicate", interrupt)
    with pytest.raises(KeyboardInterrupt):
        program.result(60)
    wait_for_end(child)
