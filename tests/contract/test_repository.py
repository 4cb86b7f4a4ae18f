"""Repository control and restricted APIs, against NVIDIA's server: scripts, step by step.

Both servers play each script on files of their own. What the real server says to a step must have
the status that the script expects; what both say must be equal, but for the rows of DIFFERENCES.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from contract.control_scripts import Broke, Script, play_all
from contract.repository_scripts import EXPLICIT, FORWARDED, POLLED, RESTRICTED, RESTRICTIONS
from server.support.model_folders import write_model
from support.servers import Flag, start_reference_server, start_tritonserver

pytestmark = pytest.mark.oracle

RESTRICTED_FLAGS: dict[str, Flag] = {
    "exit_on_error": False,
    "http_restricted_api": [f"{names}:{value}" for names, value in RESTRICTIONS.items()],
    "grpc_restricted_protocol": [f"{names}:{value}" for names, value in RESTRICTIONS.items()],
}
#: Which servers play which scripts: their flags, and a page that answers 200 when they are ready.
STAGES: dict[str, tuple[list[Script], dict[str, Flag], str]] = {
    "explicit": (
        EXPLICIT,
        # The real server needs a thread for each load, and scripts are played side by side.
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

#: Steps that may be answered otherwise, by stage, script and step, and why.
OUTSIDE = "the real server serves any folder that a name leads to, be it outside of the repository"
UNTOLD = "the real server tells of a failed load that nobody asked for in its log alone"
DIFFERENCES: dict[tuple[str, str, str], str] = {
    ("explicit", "names", "POST /v2/repository/models/../load"): OUTSIDE,
    ("polled", "files are followed", 'index {"ready": true}'): UNTOLD,
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

STEPS = [
    pytest.param(stage, one, number, id=f"{stage}: {one}: {number} {step}")
    for stage, (scripts, _, _) in STAGES.items()
    for one in scripts
    for number, step in enumerate(one.steps)
]

Said = dict[str, list[str]]


def played(start: Any, stage: str, scripts: list[Script], repository: Path, at_once: int) -> Said:
    """What one server says to scripts of a stage. Raises Broke."""
    _, flags, ready = STAGES[stage]
    repository.mkdir()
    write_model(repository, "m")  # which no script touches
    write_model(repository, "p", TEXT, TELLS_PARAMETERS)
    with start(repository, ready_path=ready, allow_metrics=False, **flags) as server:
        return play_all(scripts, server, repository, at_once)


def played_by_triton(stage: str, folder: Path) -> Said:
    """What the real server says.

    Where models are loaded side by side on a busy machine it was seen to hang over a load, and then
    to end itself by SIGSEGV. With each load it tries all ensembles again that are there, side by
    side, so few scripts share a server. Where it breaks off, fewer of them are played at a time.
    """
    said: Said = {}
    scripts = STAGES[stage][0]
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


@pytest.fixture(scope="module")
def say(oracle_installed: None, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A function: what both servers say to a script, the real one first; played once."""
    said: dict[str, tuple[Said, Said] | None] = {}

    def of(stage: str, one: Script) -> tuple[list[str], list[str]]:
        if stage not in said:
            said[stage] = None  # what fails is not played again for each step
            folder = tmp_path_factory.mktemp(stage)
            said[stage] = (
                played_by_triton(stage, folder),
                played(start_reference_server, stage, STAGES[stage][0], folder / "ours", 4),
            )
        both = said[stage]
        assert both is not None, f"{stage} could not be played"
        real, ours = both
        return real[one.name], ours[one.name]

    return of


@pytest.mark.parametrize(("stage", "one", "number"), STEPS)
def test_both_servers_say_the_same(stage: str, one: Script, number: int, say: Any):
    real, ours = (said[number] for said in say(stage, one))
    step = one.steps[number]
    if step.status is not None:
        assert real.startswith(f"{step.status} "), real
    if (stage, one.name, step.name) in DIFFERENCES:
        assert ours != real
    else:
        assert ours == real
