"""Many loads and unloads over HTTP leave nothing of the reference server's behind."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from contract.control_scripts import VECTOR_JSON, Session, load, load_with, times, unload
from server.support.model_folders import write_model
from support.servers import start_reference_server

pytestmark = pytest.mark.slow

CYCLES = 500
WARM_UP = 20


def belongings(process: int, temporary: Path) -> tuple[int, int, int]:
    """The threads, open files and temporary folders of a server."""
    own = Path(f"/proc/{process}")
    threads, files, folders = (
        sum(1 for _ in folder.iterdir()) for folder in (own / "task", own / "fd", temporary)
    )
    return threads, files, folders


def resident_kib(process: int) -> int:
    """The memory that a process holds."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


def test_cycles_over_http_leave_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    repository = tmp_path / "models"
    write_model(repository, "s_m")
    monkeypatch.setenv("TMPDIR", str(temporary))
    steps = [
        *(load("@m", 200), load_with("@v", 200, VECTOR_JSON, **{"1/model.py": times(2)})),
        *(unload("@m"), unload("@v")),
    ]
    with start_reference_server(
        repository,
        model_control_mode="explicit",
        allow_grpc=False,
        allow_metrics=False,
        log_info=False,
    ) as server:
        session = Session(server, repository, "s")

        def cycle() -> None:
            for step in steps:
                assert step.play(session).startswith("200 ")

        def settled() -> tuple[int, int, int]:
            deadline = time.monotonic() + 5
            while (found := belongings(server.process.pid, temporary)) != before:
                if time.monotonic() > deadline:
                    break
                time.sleep(0.05)
            return found

        for _ in range(WARM_UP):
            cycle()
        time.sleep(0.5)
        before = belongings(server.process.pid, temporary)
        memory = resident_kib(server.process.pid)
        for _ in range(CYCLES):
            cycle()
        assert settled() == before
        # A model's modules, config and instance take about 100 KiB: were they kept, it would be
        # a hundred megabytes.
        assert resident_kib(server.process.pid) - memory < 8 * 1024
