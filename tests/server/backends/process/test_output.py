"""Tests of the output of processes, which the server prints with a name in front."""

import io
import os
import subprocess
import sys
import threading

import pytest
from server.backends import kit
from server.support.requests import PATIENCE_S

from reference_server.backends.process_host.process import pump


def pumped(*writes: tuple[int, bytes]) -> tuple[str, str]:
    """Return the output for a process that writes this to its stdout and stderr."""
    source = "import os, sys\n" + "".join(f"os.write({fd}, {data!r})\n" for fd, data in writes)
    streams = io.StringIO(), io.StringIO()
    ended = threading.Event()
    process = subprocess.Popen(
        [sys.executable, "-c", source], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    with process:
        pipes = [os.dup(pipe.fileno()) for pipe in (process.stdout, process.stderr)]
        life = os.pidfd_open(process.pid)
        pump("m_0", life, dict(zip(pipes, streams, strict=True)), ended.set)
    assert ended.is_set()
    return streams[0].getvalue(), streams[1].getvalue()


def test_each_line_gets_the_name_in_front():
    assert pumped((1, b"one\ntwo\n"), (2, b"three\n")) == (
        "[m_0] one\n[m_0] two\n",
        "[m_0] three\n",
    )


def test_lines_may_come_in_parts_and_the_last_without_an_end():
    assert pumped((1, b"o"), (1, b"ne\nt"), (1, b"wo")) == ("[m_0] one\n[m_0] two\n", "")


def test_invalid_utf8_is_escaped():
    assert pumped((1, b"\xff\xc3\xa9\n")) == ("[m_0] \ufffdé\n", "")


@pytest.mark.brute_force
def test_a_models_output_is_the_servers_output(start, capfd):
    instance = start(
        kit.executing(
            "import sys, subprocess",
            "print('é', len(requests))",
            "print('bad', file=sys.stderr)",
            "subprocess.run(['echo', 'from below'], check=True)",
            "return [pb_utils.InferenceResponse() for _ in requests]",
        )
    )
    instance.execute([kit.request()])
    instance.close()
    out, err = capfd.readouterr()
    assert out == "[m_0_0] é 1\n[m_0_0] from below\n"
    assert err == "[m_0_0] bad\n"


def test_all_output_is_copied_before_the_end_is_reported():
    """A child of the process keeps the pipe open."""
    source = "import os, subprocess\nprint('x' * 100_000, flush=True)\nsubprocess.Popen(['cat'])"
    stream = io.StringIO()
    ended = threading.Event()
    with subprocess.Popen(
        [sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        thread = threading.Thread(
            target=pump,
            args=(
                "m",
                os.pidfd_open(process.pid),
                {os.dup(process.stdout.fileno()): stream},
                ended.set,
            ),
        )
        thread.start()
        assert ended.wait(PATIENCE_S)
        assert stream.getvalue() == f"[m] {'x' * 100_000}\n"
        process.stdin.close()
        thread.join()
