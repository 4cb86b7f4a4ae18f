"""Repository control and restricted APIs, compared with NVIDIA's server, as scripts of steps.

Each server plays the scripts on separate files. The real server's responses are recorded
(recordings.py), and must have the status that the script expects. Both servers' responses must be
equal, except for the rows of DIFFERENCES. One script in ten is played on the real server again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from contract.control_scripts import Broke, Script, play_all
from contract.recordings import Recording, asked_live, recorded_rows
from contract.repository_scripts import EXPLICIT, FORWARDED, POLLED, RESTRICTED, RESTRICTIONS
from server.support.model_folders import write_model
from support.servers import Flag, start_reference_server, start_tritonserver

pytestmark = pytest.mark.oracle

RESTRICTED_FLAGS: dict[str, Flag] = {
    "exit_on_error": False,
    "http_restricted_api": [f"{names}:{value}" for names, value in RESTRICTIONS.items()],
    "grpc_restricted_protocol": [f"{names}:{value}" for names, value in RESTRICTIONS.items()],
}
#: Scripts by stage: the servers' flags, and a page that answers 200 when they are ready.
STAGES: dict[str, tuple[list[Script], dict[str, Flag], str]] = {
    "explicit": (
        EXPLICIT,
        # The real server needs a thread for each load, and scripts run concurrently.
        {"model_control_mode": "explicit", "http_thread_count": 32},
        "/v2/health/live",
    ),
    "restricted": (RESTRICTED, RESTRICTED_FLAGS, "/v2"),
    "forwarded": (FORWARDED, {"http_header_forward_pattern": "X-.*"}, "/v2/health/live"),
    "polled": (
        POLLED,
        {"model_control_mode": "poll", "repository_poll_secs": 1},
        "/v2/health/live",
    ),
}

SHARE_A_SERVER = 22

#: Accepted differences with reasons, by stage, script and step.
OUTSIDE = "the real server serves any folder that a name leads to, even outside of the repository"
UNTOLD = "the real server reports a failed load that no client requested only in its log"
JSON = "protobuf's C++ and Python libraries read different forms of JSON (docs/protocol.md)"
DIFFERENCES: dict[tuple[str, str, str], str] = {
    ("explicit", "names", "POST /v2/repository/models/../load"): OUTSIDE,
    ("polled", "files are followed", 'index {"ready": true}'): UNTOLD,
    ("explicit", "JSON that one server reads", "load @m with config"): JSON,
}

TEXT = """
    input { name: "X" data_type: TYPE_STRING dims: [1] }
    output { name: "Y" data_type: TYPE_STRING dims: [1] }
"""
TELLS_PARAMETERS = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            return [
                pb_utils.InferenceResponse([
                    pb_utils.Tensor("Y", np.array([request.parameters().encode()], dtype=object))
                ])
                for request in requests
            ]
"""

Said = dict[str, tuple[str, ...]]


@dataclass(frozen=True)
class Row:
    """A script and the stage that it is played on."""

    stage: str
    script: Script

    @property
    def name(self) -> str:
        return f"{self.stage}: {self.script}"

    def __str__(self) -> str:
        return self.name


ROWS = [Row(stage, one) for stage, (scripts, _, _) in STAGES.items() for one in scripts]


def sent(row: Row) -> object:
    """Return all actions of a script, and the server on which it is played."""
    _, flags, _ = STAGES[row.stage]
    return flags, TEXT, TELLS_PARAMETERS, [step.does for step in row.script.steps]


recorded = recorded_rows("repository", ROWS, sent)


def played(start: Any, stage: str, scripts: list[Script], repository: Path, at_once: int) -> Said:
    """Return one server's responses to scripts of a stage. Raises Broke."""
    _, flags, ready = STAGES[stage]
    repository.mkdir()
    write_model(repository, "m")  # which no script touches
    write_model(repository, "p", TEXT, TELLS_PARAMETERS)
    with start(repository, ready_path=ready, allow_metrics=False, **flags) as server:
        return play_all(scripts, server, repository, at_once)


def played_by_triton(stage: str, scripts: list[Script], folder: Path) -> Said:
    """Return the real server's responses.

    On a busy machine with concurrent loads, the real server was seen to hang in a load, and then
    to crash by SIGSEGV. Each load tries all existing ensembles again, concurrently, so few scripts
    share a server. After a crash, fewer scripts are played at a time.
    """
    said: Said = {}
    for first in range(0, len(scripts), SHARE_A_SERVER):
        some = scripts[first : first + SHARE_A_SERVER]
        for turn, at_once in enumerate((4, 2, 1)):
            with contextlib.suppress(Broke):
                repository = folder / f"from-{first}-turn-{turn}"
                said |= played(start_tritonserver, stage, some, repository, at_once)
                break
        else:
            said |= played(start_tritonserver, stage, some, folder / f"from-{first}-last", 1)
    return said


def once(play: Callable[[str], Said]) -> Callable[[Row], tuple[str, ...]]:
    """Return a function for the responses to a script; its first call plays the whole stage."""
    said: dict[str, Said | None] = {}

    def of(row: Row) -> tuple[str, ...]:
        if row.stage not in said:
            said[row.stage] = None  # what fails is not played again for each step
            said[row.stage] = play(row.stage)
        scripts = said[row.stage]
        assert scripts is not None, f"{row.stage} could not be played"
        return scripts[row.script.name]

    return of


@pytest.fixture(scope="module")
def ask_triton(oracle_installed: None, tmp_path_factory: pytest.TempPathFactory) -> Any:
    def play(stage: str) -> Said:
        scripts = [row.script for row in asked_live(ROWS) if row.stage == stage]
        return played_by_triton(stage, scripts, tmp_path_factory.mktemp(stage))

    return once(play)


@pytest.fixture(scope="module")
def ask_reference(tmp_path_factory: pytest.TempPathFactory) -> Any:
    def play(stage: str) -> Said:
        repository = tmp_path_factory.mktemp(stage) / "ours"
        return played(start_reference_server, stage, STAGES[stage][0], repository, 4)

    return once(play)


@pytest.mark.parametrize("row", asked_live(ROWS), ids=str)
def test_the_real_server_answers_as_recorded(row: Row, ask_triton: Any, recorded: Recording[Any]):
    recorded.check(row, ask_triton(row), lambda _, said: said)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_both_servers_say_the_same(row: Row, recorded: Recording[Any], ask_reference: Any):
    steps = zip(row.script.steps, recorded.said(row), ask_reference(row), strict=True)
    for step, real, ours in steps:
        if step.status is not None:
            assert real.startswith(f"{step.status} "), f"{step}: {real}"
        is_equal = (row.stage, row.script.name, step.name) not in DIFFERENCES
        assert (ours == real) is is_equal, f"{step}: {ours}, expected {real}"
