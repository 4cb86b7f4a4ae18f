"""Each script changes the same counters of the same models on both servers.

Statistics over HTTP and gRPC, and the metrics, have equal values.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from contract import count_ensembles, count_scripts
from contract.count_models import LATER, PROBES
from contract.count_play import (
    Play,
    counts,
    durations,
    moved,
    statistics,
    told_over_grpc,
)
from contract.count_scripts import Script
from contract.serving import both_servers, folder_of
from support.servers import COMPLETE, Flag, Server
from support.waiting import eventually

pytestmark = pytest.mark.oracle

SCRIPTS = [*count_scripts.SCRIPTS, *count_ensembles.SCRIPTS]
PLAYED = [
    pytest.param(script, which, id=f"{script}-{which}")
    for script in SCRIPTS
    for which in ("triton", "reference")
    if which == "reference" or not script.unsafe
]
FLAGS: dict[str, Flag] = {
    **COMPLETE,
    "model_control_mode": "explicit",
    "load_model": [name for name in PROBES if name not in LATER],
    "cache_config": "local,size=1048576",
    "model_load_thread_count": 8,
    "metrics_interval_ms": 100,
}
PARTS = ("queue", "compute_input", "compute_infer", "compute_output")
#: Their steps may run side by side, and end when the request has been answered, so these together
#: may take longer than the request.
ENSEMBLES = {name for name, probe in PROBES.items() if probe.model is None}


repository = folder_of(PROBES)
triton, reference = both_servers(**FLAGS)


@pytest.mark.parametrize(("script", "which"), PLAYED)
def test_a_script_moves_these_counters_and_no_others(
    script: Script, which: str, tmp_path: Path, request: pytest.FixtureRequest
):
    server: Server = request.getfixturevalue(which)
    before, ns_before = counts(server), durations(server)
    play = Play(server, tmp_path)
    with contextlib.closing(play):
        script.act(play)
        play.answered()
        wanted = script.expected(which)
        assert eventually(lambda: moved(before, counts(server)), wanted) == wanted
    ns = moved(ns_before, durations(server))
    for model, moves in wanted.items():
        assert_plausible(model, moves, ns.get(model, {}))
    assert told_over_grpc(server) == statistics(server)
    # Nothing has come later.
    assert moved(before, counts(server)) == wanted


def assert_plausible(model: str, moves: dict[str, int], ns: dict[str, int]) -> None:
    """Check that counted work has a duration, other work has none, and sums exceed their parts."""
    # The real server has not measured the failure that it ends an iterative sequence with.
    measured = ("success", "cache_hit", "cache_miss", *PARTS)
    for part in measured if model == "iterative" else (*measured, "fail"):
        assert (ns.get(part, 0) > 0) == (moves.get(part, 0) > 0), (model, part)
    if model not in ENSEMBLES:
        assert sum(ns.get(part, 0) for part in PARTS) <= ns.get("success", 0), model


@pytest.mark.parametrize("script", [s for s in SCRIPTS if s.reason], ids=str)
def test_what_is_said_to_differ_does(script: Script):
    assert script.expected("reference") != script.expected("triton")
