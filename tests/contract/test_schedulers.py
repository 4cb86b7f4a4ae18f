"""Both servers handle waiting requests alike: batches, refusals, orders and counts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from contract.scheduler_scripts import (
    LIMITED,
    MODELS,
    SCRIPTS,
    SHARING,
    Play,
    play,
    share,
    write,
)
from support.servers import COMPLETE, Server, start_reference_server, start_tritonserver

pytestmark = pytest.mark.oracle

FLAGS = COMPLETE | {"model_load_thread_count": 8}
STARTERS = {"tritonserver": start_tritonserver, "reference server": start_reference_server}


@pytest.fixture(scope="module", params=STARTERS)
def playground(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, oracle_installed: None
) -> Iterator[tuple[Server, Path]]:
    """Run each server with models that the scripts hold and release."""
    repository = tmp_path_factory.mktemp("gated")
    write(repository)
    with STARTERS[request.param](repository, **FLAGS) as server:
        yield server, repository


@pytest.mark.parametrize("name", SCRIPTS)
def test_what_becomes_of_requests_that_wait(
    name: str, playground: tuple[Server, Path], request: pytest.FixtureRequest
):
    script = SCRIPTS[name]
    outcome = play(*playground, script)
    if request.node.callspec.params["playground"] == "tritonserver":
        # It counts a request as pending before the queue has it, so that two that come one after
        # the other may change places there, if rarely.
        for _ in range(2):
            if " | ".join(outcome.batches) != script.batches:
                outcome = play(*playground, script)
    assert " | ".join(outcome.batches) == script.batches
    errors = {id: said for id, said in outcome.answers.items() if said and "Locally" not in said}
    assert errors == script.refused


def test_answers_keep_the_order_of_their_requests(playground: tuple[Server, Path]):
    outcome = play(*playground, SCRIPTS["order"])
    assert outcome.order == ["a", "b", "c"]


@pytest.mark.parametrize("start", STARTERS.values(), ids=STARTERS)
def test_executions_wait_for_the_resources_that_they_share(
    start: Callable[..., AbstractContextManager[Server]], tmp_path: Path, oracle_installed: None
):
    write(tmp_path, {name: MODELS[name] for name in ("limited", "unlimited")} | SHARING)
    flags = FLAGS | {"rate_limit": "execution_count", "rate_limit_resource": ["R:3", "S:2"]}
    with start(tmp_path, **flags) as server:
        limited, unlimited = (Play(server, tmp_path, name) for name in ("limited", "unlimited"))
        try:
            LIMITED.act(limited)
            # Its model needs no resource, but the waiting instance has precedence.
            unlimited.wait("c", flat=True)
            assert " | ".join(limited.finish({}).batches) == LIMITED.batches
            assert unlimited.finish({}).batches == ["c"]
        finally:
            limited.close()
            unlimited.close()
        with contextlib.ExitStack() as stack:
            plays = {name: Play(server, tmp_path, name) for name in SHARING}
            for each in plays.values():
                stack.callback(each.close)
            share(plays, seed=1)
