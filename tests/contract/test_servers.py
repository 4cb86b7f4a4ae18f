"""Start and stop of servers: failures have a reason, and no process or port remains in use."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from contract.probes import write_probes
from contract.wire import connect
from support.distribution import SECONDS, SHARED_BY, SHARING, in_order, unit_of
from support.servers import (
    ROOT,
    ServerFailed,
    revive,
    start_reference_server,
    start_tritonserver,
)
from support.waiting import until

STARTERS = [
    pytest.param(start_tritonserver, marks=pytest.mark.oracle, id="tritonserver"),
    pytest.param(start_reference_server, id="reference server"),
]


def test_files_of_the_distribution_exist():
    missing = [file for file in (*SHARED_BY, *SECONDS) if not (ROOT / file).is_file()]
    assert sorted(missing) == sorted(SHARING)


@dataclass
class Listed:
    """A test without marks, by its identifier."""

    nodeid: str

    def get_closest_marker(self, name: str) -> None:
        return None


def test_units_that_wait_run_beside_units_that_compute_and_the_longest_start_first():
    files = ["tests/contract/test_new.py", "tests/stack/test_ray.py", "tests/contract/test_grpc.py"]
    files += ["tests/runtime/test_axes.py", "tests/factory/test_text_head.py"]
    files += ["tests/performance/test_memory.py", "tests/contract/test_shutdown.py"]
    tests = [Listed(f"{file}::{name}") for file in files for name in ("test_a", "test_b")]
    ordered = in_order(tests)
    assert [test.nodeid[-1] for test in ordered] == ["a", "b"] * len(files)
    assert [unit_of(test.nodeid) for test in ordered[::2]] == [
        "tests/contract/test_shutdown.py",
        "tests/performance/test_memory.py",
        "tests/stack/test_ray.py",
        "the probes",
        "tests/factory/test_text_head.py",
        "tests/runtime/test_axes.py",
        "tests/contract/test_new.py",
    ]


@pytest.mark.parametrize("start", STARTERS)
def test_a_failed_start_carries_the_log(start, tmp_path: Path, request: pytest.FixtureRequest):
    if start is start_tritonserver:
        request.getfixturevalue("oracle_installed")
    missing = tmp_path / "missing"
    with (
        pytest.raises(ServerFailed, match=f"exit code 1(?s:.)*failed to stat file {missing}"),
        start(missing, allow_grpc=False, allow_metrics=False),
    ):
        pytest.fail("the server started without a repository")


def test_a_server_ends_with_the_tests_that_started_it(tmp_path: Path):
    write_probes(tmp_path, "vector")
    program = f"""
from pathlib import Path
from support.servers import start_reference_server
repository = Path({str(tmp_path)!r})
with start_reference_server(repository, allow_grpc=False, allow_metrics=False) as server:
    print(server.http, flush=True)
    input()
"""
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    ) as tests:
        address = tests.stdout.readline().decode().strip()
        assert listens(address)
        tests.kill()
    until(lambda: not listens(address))


def listens(address: str) -> bool:
    """Return whether a server accepts connections at the address."""
    try:
        connect(address).close()
    except (ConnectionRefusedError, ConnectionResetError):
        # Reset: the server closed the port after the system had accepted the connection.
        return False
    return True


@pytest.mark.oracle
def test_a_killed_server_leaves_no_shared_memory(tmp_path: Path, oracle_installed: None):
    write_probes(tmp_path, "vector")
    with start_tritonserver(tmp_path, allow_grpc=False, allow_metrics=False) as server:
        (region,) = (a.rpartition("=")[2] for a in server.process.args if "shm-region" in a)
        assert list(Path("/dev/shm").glob(f"{region}*"))
        os.killpg(server.process.pid, signal.SIGKILL)
    assert not list(Path("/dev/shm").glob(f"{region}*"))


@pytest.mark.oracle
def test_a_crashed_real_server_is_restarted_at_its_address(tmp_path: Path, oracle_installed: None):
    write_probes(tmp_path, "vector")
    with start_tritonserver(tmp_path, allow_grpc=False, allow_metrics=False) as server:
        before = server.process
        revive(after_failure=True)
        assert server.process is before
        # It may answer before it logs this line.
        until(lambda: "Started HTTPService" in server.log)
        os.killpg(before.pid, signal.SIGKILL)
        until(lambda: not listens(server.http))  # it may still be ending
        assert revive(after_failure=True)
        assert listens(server.http)
        until(lambda: server.log.count("Started HTTPService") == 2)
    assert not listens(server.http)
