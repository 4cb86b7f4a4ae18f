"""`auto_complete_config` has the same effect on a configuration on both servers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from contract.auto_complete_scripts import COMPLETIONS, Completion
from contract.casebook import get
from contract.recordings import Recording, asked_live, recorded_rows, repository_folder
from contract.wire import exchange, index
from support.servers import Flag, Server, start_reference_server, start_tritonserver

pytestmark = pytest.mark.oracle

FLAGS: dict[str, Flag] = {
    "allow_grpc": False,
    "allow_metrics": False,
    "exit_on_error": False,
    "model_load_thread_count": 8,
}
LIVE = "/v2/health/live"
#: A line of Python's own code, which differs between its versions.
_LINE = re.compile(r"/\S+/lib/python[\d.]+/(\S+)\(\d+\)")
#: The folder in which the real server is installed.
_INSTALLED = re.compile(r"/\S+/tritonserver/(?=backends/)")


Answers = Recording[str]


@pytest.fixture(scope="module")
def repository() -> Iterator[Path]:
    with repository_folder("completing") as root:
        folder = root / "repository"
        for row in COMPLETIONS:
            (folder / row.model / "1").mkdir(parents=True)
            (folder / row.model / "1" / "model.py").write_text(row.source)
            if row.config is not None:
                (folder / row.model / "config.pbtxt").write_text(row.config)
        yield folder


recorded = recorded_rows(
    "auto_complete", COMPLETIONS, lambda row: (row.source, row.config), repository="repository"
)


@pytest.fixture(scope="module")
def triton(oracle_installed: None, repository: Path) -> Iterator[Server]:
    models = [row.model for row in asked_live(COMPLETIONS)]
    flags = FLAGS | {"model_control_mode": "explicit", "load_model": models}
    with start_tritonserver(repository, ready_path=LIVE, **flags) as server:
        yield server


@pytest.fixture(scope="module")
def reference(repository: Path) -> Iterator[Server]:
    with start_reference_server(repository, ready_path=LIVE, **FLAGS) as server:
        yield server


def config(server: Server, row: Completion) -> str:
    """Return the completed configuration with sorted keys."""
    reply = exchange(server.http, get(f"/v2/models/{row.model}/config")).replies[0]
    return json.dumps(json.loads(reply.body), sort_keys=True)


def reason(server: Server, row: Completion) -> str:
    """Return the reason why a model could not be loaded."""
    reason = _LINE.sub(r"\1", index(server.http)[row.model].get("reason", ""))
    return _INSTALLED.sub("/opt/tritonserver/", reason)


def answer(server: Server, row: Completion) -> str:
    """Return the completed configuration, or the reason of the failed load."""
    return reason(server, row) if row.fails else config(server, row)


@pytest.mark.parametrize("row", asked_live(COMPLETIONS), ids=str)
def test_the_real_server_answers_as_recorded(row: Completion, triton: Server, recorded: Answers):
    recorded.check(row, answer(triton, row), lambda _, said: said)


@pytest.mark.parametrize("row", [row for row in COMPLETIONS if not row.fails], ids=str)
def test_the_configuration_becomes_the_same(row: Completion, recorded: Answers, reference: Server):
    assert config(reference, row) == recorded.said(row)


@pytest.mark.parametrize("row", [row for row in COMPLETIONS if row.fails], ids=str)
def test_the_load_fails_for_the_same_reason(row: Completion, recorded: Answers, reference: Server):
    # The real one shows its own code too; here a place is always in the model's files.
    own_code = r"  .*/triton_python_backend_utils\.py.*\n"
    assert reason(reference, row) == re.sub(own_code, "", recorded.said(row))
