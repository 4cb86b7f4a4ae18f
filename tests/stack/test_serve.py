"""`make serve`: a first answer, then a server whose signals and exit code are the command's own."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.servers import ROOT, Flag, command_line, free_ports

pytestmark = pytest.mark.slow

SERVE = [sys.executable, str(ROOT / "tools" / "serve.py")]
LAST_LINE = "Serving on http://"


@pytest.fixture
def port() -> int:
    (port,) = free_ports(1)
    return port


@contextmanager
def serving(port: int, **flags: Flag) -> Iterator[subprocess.Popen[str]]:
    """The command on the real models, in a process group of its own as in a terminal."""
    process = start(ROOT / "model_repository", port, **flags)
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_first_answer_is_shown_once_the_server_is_ready_and_ctrl_c_ends_it(port):
    with serving(port) as process:
        shown = read_until(process, LAST_LINE)
        assert re.search(r"\| text_pipeline +\| 1 +\| READY(?s:.*)is about: billing", shown)
        end(process, signal.SIGINT, os.killpg)


def test_a_signal_ends_the_server_in_its_own_way(port):
    with serving(port, model_control_mode="explicit", load_model="text_pipeline") as process:
        read_until(process, LAST_LINE)
        end(process, signal.SIGTERM, os.kill)


def end(process: subprocess.Popen[str], number: int, send: Callable[[int, int], None]) -> None:
    send(process.pid, number)
    # The end of the output is also the end of every process that could still write to it.
    rest, _ = process.communicate(timeout=60)
    assert "successfully unloaded 'text_encoder'" in rest
    assert process.returncode == 0


def test_a_file_gets_the_log_and_the_terminal_a_line(tmp_path, port):
    log = tmp_path / "serve.log"
    process = start(tmp_path / "missing", port, log_file=str(log))
    shown, _ = process.communicate(timeout=60)
    # Long before the wait for readiness would give up.
    assert process.returncode == 1
    assert str(tmp_path / "missing") in shown
    assert "The first request" not in shown
    assert f"Server, with its log in {log} ... " in shown
    assert f"The server has ended; see {log}" in shown
    assert "Emulating tritonserver" in log.read_text()
    assert "Emulating tritonserver" not in shown


def test_taken_port_is_refused_before_its_owner_could_answer(port):
    with socket.create_server(("", port)):
        process = start(Path("unused"), port)
        shown, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert f"port {port}: Address already in use" in shown


def start(repository: Path, http_port: int, **flags: Flag) -> subprocess.Popen[str]:
    """Start the command, on ports that nobody uses; both of its streams come as one."""
    grpc_port, metrics_port = free_ports(2)
    settings: dict[str, Flag] = {
        "model_repository": str(repository),
        "http_port": http_port,
        "grpc_port": grpc_port,
        "metrics_port": metrics_port,
        **flags,
    }
    return subprocess.Popen(
        [*SERVE, *command_line(settings)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def read_until(process: subprocess.Popen[str], mark: str) -> str:
    """All lines up to the one that begins with `mark`."""
    lines: list[str] = []
    assert process.stdout is not None
    for line in process.stdout:
        lines.append(line)
        if line.startswith(mark):
            return "".join(lines)
    pytest.fail(f"the command ended without {mark!r}:\n{''.join(lines)}")
