"""Both servers on the same models: one pair on the real repository, one pair on the probes.

Each server starts once for the whole run, when the first test asks for it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol
from contract.casebook import Ask, Case
from contract.cases import CASES, real_models
from contract.probes import write_probes
from contract.recordings import Recording, recording, repository_folder
from contract.wire import Exchange, exchange
from support.in_process import InProcessServer
from support.servers import (
    COMPLETE,
    ROOT,
    Flag,
    Server,
    revive,
    start_reference_server,
    start_tritonserver,
)

from tools import oracle

REAL: dict[str, Flag] = COMPLETE | {"allow_metrics": False, "model_load_thread_count": 4}
HTTP_ALONE: dict[str, Flag] = {"allow_grpc": False, "allow_metrics": False}
# Some probes fail on purpose, so these servers are never ready; they are live when all are loaded.
PROBING: dict[str, Flag] = COMPLETE | {
    "allow_metrics": False,
    "exit_on_error": False,
    "model_load_thread_count": 8,
}
LIVE = "/v2/health/live"
# A server's working directory is where its log is.
TRACING: dict[str, Flag] = {
    **COMPLETE,
    **HTTP_ALONE,
    "trace_config": "triton,file=trace.json",
    "model_load_thread_count": 8,
}
TRACED = (
    *("vector", "matrix", "batched", "pair", "text", "words", "types", "reshaped", "half"),
    *("faults", "chain", "fork", "faulty_chain"),
)


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run a test again, once, on a new real server if the server crashed during the test.

    So a crash does not fail all tests that share the server. A second crash is a failure.
    """
    if not item.path.is_relative_to(Path(__file__).parent):
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = runtestprotocol(item, log=False, nextitem=nextitem)
    failed = any(report.failed for report in reports)
    if revive(after_failure=failed) and failed:
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        revive(after_failure=any(report.failed for report in reports))
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@pytest.fixture(scope="session")
def oracle_installed() -> None:
    """Skip tests if the real server is not installed, except in CI."""
    if not oracle.is_installed():
        reason = "the real tritonserver is not installed; run `make oracle`"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)


@pytest.fixture(scope="session")
def recorded(probe_repository: Path) -> Iterator[Recording[Exchange]]:
    """Return the real server's recorded responses to the rows of the HTTP protocol."""
    with recording("http", probe_repository, CASES) as opened:
        yield opened


@pytest.fixture(scope="session")
def recorded_for_real(real_repository: Path) -> Iterator[Recording[Exchange]]:
    """Return the real server's recorded responses to the rows about the real models."""
    with recording("real_models", real_repository, real_models.CASES) as opened:
        yield opened


@pytest.fixture(scope="session")
def real_repository() -> Iterator[Path]:
    """Copy model_repository/ with its artifacts, because the real server writes to its folder."""
    subprocess.run([sys.executable, "-m", "model_factory", "build"], cwd=ROOT, check=True)
    # Only ONNX Runtime is used; the torch engine's artifacts would double the size.
    ignored = shutil.ignore_patterns("__pycache__", ".cache", "*.pt2")
    with repository_folder("real") as folder:
        copy = folder / "model_repository"
        yield shutil.copytree(ROOT / "model_repository", copy, ignore=ignored)


@pytest.fixture(scope="session")
def card_repository(real_repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the real models, compiled for a simulated card."""
    # A late import: tests/recorded imports this file, and `make quick` would take 0.5 s longer.
    from contract.ascend_repository import write_ascend_repository

    folder = tmp_path_factory.mktemp("card") / "repository"
    write_ascend_repository(real_repository, folder)
    return folder


@pytest.fixture(scope="session")
def triton(oracle_installed: None, real_repository: Path) -> Iterator[Server]:
    with start_tritonserver(real_repository, **REAL) as server:
        yield server


@pytest.fixture(scope="session")
def reference(real_repository: Path) -> Iterator[Server]:
    with start_reference_server(real_repository, **REAL) as server:
        yield server


@pytest.fixture(scope="session")
def probe_repository() -> Iterator[Path]:
    """Write the probes to one folder for both servers, so that paths in messages are equal."""
    with repository_folder("probes") as folder:
        write_probes(folder / "repository")
        yield folder / "repository"


@pytest.fixture(scope="session")
def probed_triton(oracle_installed: None, probe_repository: Path) -> Iterator[Server]:
    with start_tritonserver(probe_repository, ready_path=LIVE, **PROBING) as server:
        yield server


@pytest.fixture(scope="session")
def probed_reference(probe_repository: Path) -> Iterator[Server]:
    with start_reference_server(probe_repository, ready_path=LIVE, **PROBING) as server:
        yield server


@pytest.fixture(scope="session")
def traced_repository() -> Iterator[Path]:
    """Write some probes, for servers whose settings change and which write traces."""
    with repository_folder("traced") as folder:
        write_probes(folder / "repository", *TRACED)
        yield folder / "repository"


@pytest.fixture(scope="session")
def traced_triton(oracle_installed: None, traced_repository: Path) -> Iterator[Server]:
    with start_tritonserver(traced_repository, **TRACING) as server:
        yield server


@pytest.fixture(scope="session")
def traced_reference(traced_repository: Path) -> Iterator[Server]:
    with start_reference_server(traced_repository, **TRACING) as server:
        yield server


def asking(server: Server | InProcessServer) -> Ask:
    """Return a function that sends a case to the server once and caches the answer."""
    answers: dict[tuple[str, int], Exchange] = {}

    def ask(case: Case) -> Exchange:
        asked = case.name, server.run
        if asked not in answers:
            answers[asked] = exchange(server.http, case.request, replies=case.replies)
        return answers[asked]

    return ask


@pytest.fixture(scope="session")
def ask_triton(probed_triton: Server) -> Ask:
    return asking(probed_triton)


@pytest.fixture(scope="session")
def ask_triton_for_real(triton: Server) -> Ask:
    """Return a function that sends a case to the real server with the real models."""
    return asking(triton)


@pytest.fixture(scope="session")
def ask_reference_for_real(reference: Server) -> Ask:
    """Return a function that sends a case to the reference server with the real models."""
    return asking(reference)
