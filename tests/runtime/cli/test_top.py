import json
from pathlib import Path

import pytest
from runtime.support.graphs import ENCODER
from runtime.support.services import ClientProcess, Services

from ge_runtime.cli import main, top
from ge_runtime.cli.top import _card, table
from ge_runtime.npu.service.protocol import VERSION

pytestmark = pytest.mark.brute_force


@pytest.fixture
def services(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with Services(tmp_path / "ge_runtime") as running:
        yield running


@pytest.mark.parametrize("options", [["--json"], ["--once", "--json"], ["--json", "--once"]])
def test_without_services_nothing_is_started(services, capsys, options):
    assert main(["top", "--once"]) == 1
    assert capsys.readouterr().out == (
        f"No device service runs (none in {services.path}). Only models with `placement: service` "
        "start one; the server's live page and `/metrics` show other models\n"
    )
    assert main(["top", *options]) == 1
    assert json.loads(capsys.readouterr().out) == []
    assert services.names() == set()


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
    stats["models"][0]["artifacts"] = ["/models/text_encoder/1/model.onnx"]
    stats["clients"][0]["name"] = "text_encoder_0_1"
    wide, narrow = (table([stats], {}, Path("/x"), columns) for columns in (200, 80))
    assert max(map(len, narrow)) <= 80 < max(map(len, wide))
    assert len(narrow) == len(wide)
    models, clients = (line.split() for line in narrow if line.endswith(("mean ms", "share")))
    assert models[:2] == ["model", "weights"]
    assert clients[:2] == ["client", "pid"]
    assert not {"content", "process"} & {*models, *clients}


def client_of(number, busy_s):
    """Return a client of an instance; all have the same name and process."""
    known = dict.fromkeys(("arenas", "executions", "faults", "waiting", "wait_s"), 0)
    named = {"number": number, "name": "encoder_0", "pid": 1, "process": "x", "weight": 1.0}
    return {**known, **named, "busy_s": busy_s}


def stats_of(*busy_s):
    """Return the statistics of a service whose clients have executed for these times."""
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
        "clients": [client_of(number, own) for number, own in enumerate(busy_s)],
    }


def test_shares_are_of_the_time_since_the_last_update():
    lines = table([stats_of(10.0, 30.0)], {}, Path("/x"))
    assert lines[0] == "cpu (not opened), pid 7, up 1:01:01"
    assert [line.split()[-1] for line in lines[-2:]] == ["25%", "75%"]
    lines = table([stats_of(13.0, 31.0)], {"cpu": stats_of(10.0, 30.0)}, Path("/x"))
    assert [line.split()[-1] for line in lines[-2:]] == ["75%", "25%"]
    lines = table([stats_of(13.0, 31.0)], {"cpu": stats_of(13.0, 31.0)}, Path("/x"))
    assert [line.split()[-1] for line in lines[-2:]] == ["-", "-"]


def test_line_about_the_card():
    card = {"device_unwell": False, "device_free_bytes": 3 * 2**29, "device_total_bytes": 2**31}
    lines = _card({**card, "device_cube_percent": 40, "device_memory_percent": 25})
    assert lines == ["  card    1.5 GiB free of 2.0 GiB, cube 40%, memory 25%"]
    assert "does not answer" in _card({"device_unwell": True})[0]
    assert _card({}) == []


@pytest.fixture
def live(tmp_path, monkeypatch, capsys):
    """Return a function that shows two tables, until Ctrl-C, and returns what was printed."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))

    def run(services, is_terminal):
        pauses = iter([None])

        def sleep(seconds):
            assert seconds == 0.01
            if next(pauses, True):
                raise KeyboardInterrupt

        monkeypatch.setattr(top, "read_services", lambda folder: services)
        monkeypatch.setattr(top, "_size_of_terminal", lambda: (80, 8))
        monkeypatch.setattr(top.sys.stdout, "isatty", lambda: is_terminal)
        monkeypatch.setattr(top.time, "sleep", sleep)
        assert main(["top", "--interval", "0.01"]) == 0
        return capsys.readouterr().out

    return run


def test_a_terminal_is_overwritten(live):
    printed = live([stats_of(1.0, 1.0)], is_terminal=True)
    empty, *screens = printed.split("\x1b[H")
    assert (empty, len(screens)) == ("", 2)
    lines = screens[0].replace("\x1b[K", "").replace("\x1b[J", "").splitlines()
    assert len(lines) == 7
    assert lines[0].startswith("cpu (not opened), pid 7")
    assert lines[-1] == "... 2 more lines: see --once"


def test_a_pipe_gets_all_tables(live):
    first, second, end = live([], is_terminal=False).split("\n\n")
    assert (first, end) == (second, "")
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
