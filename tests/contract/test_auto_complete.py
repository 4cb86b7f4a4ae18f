"""`auto_complete_config` has the same effect on a configuration on both servers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from contract.auto_complete_scripts import COMPLETIONS, Completion
from contract.casebook import get
from contract.wire import exchange
from support.servers import Flag, Server, start_reference_server, start_tritonserver

pytestmark = pytest.mark.oracle

FLAGS: dict[str, Flag] = {
    "allow_grpc": False,
    "allow_metrics": False,
    "exit_on_error": False,
    "model_load_thread_count": 8,
}
LIVE = "/v2/health/live"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models that complete their configurations."""
    folder = tmp_path_factory.mktemp("completing")
    for row in COMPLETIONS:
        (folder / row.model / "1").mkdir(parents=True)
        (folder / row.model / "1" / "model.py").write_text(row.source)
        if row.config is not None:
            (folder / row.model / "config.pbtxt").write_text(row.config)
    return folder


@pytest.fixture(scope="module")
def triton(oracle_installed: None, repository: Path) -> Iterator[Server]:
    """The real server."""
    with start_tritonserver(repository, ready_path=LIVE, **FLAGS) as server:
        yield server


@pytest.fixture(scope="module")
def reference(repository: Path) -> Iterator[Server]:
    """The reference server."""
    with start_reference_server(repository, ready_path=LIVE, **FLAGS) as server:
        yield server


def config(server: Server, row: Completion) -> object:
    """The completed configuration, or why there is none."""
    reply = exchange(server.http, get(f"/v2/models/{row.model}/config")).replies[0]
    return json.loads(reply.body)


def reason(server: Server, row: Completion) -> str:
    """Why a model could not be loaded."""
    index = b"POST /v2/repository/index HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
    entries = json.loads(exchange(server.http, index).replies[0].body)
    (entry,) = [entry for entry in entries if entry["name"] == row.model]
    return entry.get("reason", "")


@pytest.mark.parametrize("row", [row for row in COMPLETIONS if not row.fails], ids=str)
def test_the_configuration_becomes_the_same(row: Completion, triton: Server, reference: Server):
    completed = config(triton, row)
    assert completed["name"] == row.model
    assert config(reference, row) == completed


@pytest.mark.parametrize("row", [row for row in COMPLETIONS if row.fails], ids=str)
def test_the_load_fails_for_the_same_reason(row: Completion, triton: Server, reference: Server):
    text = reason(triton, row)
    assert text.partition("\n")[0] == f"Internal: {row.fails.format(model=row.model)}"
    # The real one shows its own code too; here a place is always in the model's files.
    assert reason(reference, row) == re.sub(r"  .*/triton_python_backend_utils\.py.*\n", "", text)
