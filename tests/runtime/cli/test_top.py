import errno
import fcntl
import json
import os
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from runtime.support.graphs import ENCODER
from runtime.support.services import ClientProcess, Services

from ge_runtime.cli import main
from ge_runtime.cli.top import _card, table
from ge_runtime.npu.service.protocol import VERSION

pytestmark = pytest.mark.brute_force

TIMEOUT_S = 60
INTERRUPTIBLE = """\
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from ge_runtime.cli import main
sys.exit(main())
"""
"""The command with the default handler of SIGINT. A shell that starts the tests in the background
makes them and their children ignore SIGINT."""


@pytest.fixture
def services(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with Services(tmp_path / "ge_runtime") as running:
        yield running


def test_without_services_nothing_is_started(services, capsys):
    assert main(["top", "--once"]) == 1
    assert capsys.readouterr().out == (
        f"No device service runs (none in {services.path}). Only models with `placement: service` "
        "start one; the server's live page and `/metrics` show other models\n"
    )
    assert main(["top", "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == []
    assert services.names() == set()


@pytest.mark.parametrize("options", [["--once", "--json"], ["--json", "--once"]])
def test_options_that_print_once(services, capsys, options):
    assert main(["top", *options]) == 1
    assert json.loads(capsys.readouterr().out) == []


def test_table_of_services_models_and_clients(services, version_dir, capsys):
    model = version_dir(ENCODER) / "model.onnx"
    with ClientProcess(model) as one, ClientProcess(model) as other:
        pid = one.service()
        assert other.service() == pid
        assert main(["top", "--json"]) == 0
        (stats,) = json.loads(capsys.readouterr().out)
        assert main(["top", "--once"]) == 0
        lines = capsys.readouterr().out.splitlines()
    assert (stats["device"], stats["pid"], stats["version"]) == ("cpu", pid, VERSION)
    assert {client["pid"] for client in stats["clients"]} == {one.pid, other.pid}
    assert all(client["executions"] > 0 for client in stats["clients"])
    (shared,) = stats["models"]
    assert (shared["artifacts"], shared["clients"]) == ([str(model)], 2)
    assert stats["memory"]["arenas"] == sum(client["arenas"] for client in stats["clients"])
    assert lines[0].startswith(f"cpu (host), pid {pid}, up 0:00:")
    assert [line.split()[0] for line in lines[1:4]] == ["runs", "waits", "memory"]
    assert sum(line.startswith("  client process") for line in lines) == 2


def test_shares_are_of_the_time_since_the_last_update():
    def client(number, busy_s):
        """Return a client of an instance; all have the same name and process."""
        known = dict.fromkeys(("arenas", "executions", "faults", "waiting", "wait_s"), 0)
        named = {"number": number, "name": "encoder_0", "pid": 1, "process": "x", "weight": 1.0}
        return {**known, **named, "busy_s": busy_s}

    def stats(a, b):
        scheduler = dict.fromkeys(
            ("begun", "running", "waiting", "capacity", "free", "waited", "expired", "cancelled"), 0
        )
        return {
            "device": "cpu",
            "place": None,
            "pid": 7,
            "up_s": 3661.0,
            "turns": {**scheduler, "wait_s": 0.0, "longest_wait_s": 0.0},
            "memory": {"weights": 0, "arenas": 0, "allocated": {}, "resident": 0},
            "models": [],
            "clients": [client(1, a), client(2, b)],
        }

    lines = table([stats(10.0, 30.0)], {}, Path("/x"))
    assert lines[0] == "cpu (not opened), pid 7, up 1:01:01"
    assert [line.split()[-1] for line in lines[-2:]] == ["25%", "75%"]
    lines = table([stats(13.0, 31.0)], {"cpu": stats(10.0, 30.0)}, Path("/x"))
    assert [line.split()[-1] for line in lines[-2:]] == ["75%", "25%"]
    lines = table([stats(13.0, 31.0)], {"cpu": stats(13.0, 31.0)}, Path("/x"))
    assert [line.split()[-1] for line in lines[-2:]] == ["-", "-"]


def test_line_about_the_card():
    card = {"device_unwell": False, "device_free_bytes": 3 * 2**29, "device_total_bytes": 2**31}
    lines = _card({**card, "device_cube_percent": 40, "device_memory_percent": 25})
    assert lines == ["  card    1.5 GiB free of 2.0 GiB, cube 40%, memory 25%"]
    assert "does not answer" in _card({"device_unwell": True})[0]
    assert _card({}) == []


def test_a_narrow_terminal_omits_columns(services, version_dir):
    with ClientProcess(version_dir(ENCODER) / "model.onnx") as client:
        client.service()
        stats = services.stats()
    stats["models"][0]["artifacts"] = ["/models/text_encoder/1/model.onnx"]
    stats["clients"][0]["name"] = "text_encoder_0_1"
    wide, narrow = (table([stats], {}, Path("/x"), columns) for columns in (200, 80))
    assert max(map(len, narrow)) <= 80 < max(map(len, wide))
    assert len(narrow) == len(wide)
    models, clients = (line.split() for line in narrow if line.endswith(("mean ms", "share")))
    assert models[:2] == ["model", "weights"]
    assert clients[:2] == ["client", "pid"]
    assert not {"content", "process"} & {*models, *clients}


def output_of(terminal):
    """Yield the output in parts until the other side is closed."""
    end = time.monotonic() + TIMEOUT_S
    while select.select([terminal], [], [], max(0.0, end - time.monotonic()))[0]:
        assert time.monotonic() < end, "the output does not end"
        try:
            yield os.read(terminal, 65536)
        except OSError as error:
            if error.errno == errno.EIO:
                return
            raise
    pytest.fail("no output and no end of file before the time limit")


def test_a_terminal_is_overwritten(services, version_dir):
    """The command runs in a pseudo-terminal until Ctrl-C."""
    ours, theirs = os.openpty()
    try:
        with ClientProcess(version_dir(ENCODER) / "model.onnx") as client:
            client.service()
            command = [sys.executable, "-c", INTERRUPTIBLE, "top", "--interval", "0.01"]
            fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 8, 80, 0, 0))
            with subprocess.Popen(command, stdout=theirs, stdin=subprocess.DEVNULL) as top:
                try:
                    os.close(theirs)
                    theirs = -1
                    seen = b""
                    for part in output_of(ours):
                        seen += part
                        if seen.count(b"\x1b[H") >= 3:
                            break
                    top.send_signal(signal.SIGINT)
                    for _ in output_of(ours):  # it cannot end while its last words have no room
                        pass
                    assert top.wait(TIMEOUT_S) == 0
                finally:
                    top.kill()
    finally:
        for terminal in (ours, theirs):
            if terminal >= 0:
                os.close(terminal)
    screen = seen.split(b"\x1b[H")[1].decode()
    lines = screen.replace("\x1b[K", "").replace("\x1b[J", "").splitlines()
    assert len(lines) == 7
    assert lines[0].startswith("cpu (host), pid ")
    assert lines[-1] == "... 4 more lines: see --once"


def test_a_pipe_gets_all_tables(services):
    command = [sys.executable, "-c", INTERRUPTIBLE, "top", "--interval", "0.01"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as top:
        first, empty, second = (top.stdout.readline() for _ in range(3))
        top.kill()
    assert (first, empty) == (second, "\n")
    assert first.startswith("No device service runs")


def test_a_service_that_does_not_answer():
    assert table([{"device": "cpu", "fault": "it does not answer"}], {}, Path("/x")) == [
        "cpu: it does not answer"
    ]


@pytest.mark.parametrize("interval", ["0", "-1", "x", "inf", "1e300"])
def test_invalid_intervals_are_refused(interval, capsys):
    with pytest.raises(SystemExit):
        main(["top", "--interval", interval])
    assert "expected seconds above 0" in capsys.readouterr().err
