"""The models of examples/models, one of each kind, answer alike on both servers."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from contract.casebook import infer, tensor
from contract.wire import exchange
from support.servers import COMPLETE, ROOT, Server, start_reference_server, start_tritonserver

pytestmark = pytest.mark.oracle

SHOWN = """\
spell, a decoupled model: hello is h, e, l, l, o
running_sum, a model of sequences: [1, 2, 3] add up to [1.0, 3.0, 6.0]
square_root, an iterative model: the root of 2 is 1.414214, after 5 steps
distance, a model that asks square_root: from (0, 0) to (3, 4) it is 5.000000
"""
REQUESTS = {
    "roots of a batch": infer("square_root", tensor("X", "FP32", [2, 1], [9, 16])),
    "a root that there is not": infer("square_root", tensor("X", "FP32", [1, 1], [-1])),
    "distances on a line": infer("distance", tensor("POINT", "FP32", [1], [7])),
    "no distance at all": infer("distance", tensor("POINT", "FP32", [2], [0, 0])),
    "a sum that has not begun": infer("running_sum", tensor("X", "FP32", [1, 1], [1])),
    "a word, where one answer is wanted": infer("spell", tensor("WORD", "BYTES", [1], ["a"])),
}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = tmp_path_factory.mktemp("examples") / "models"
    ignored = shutil.ignore_patterns("__pycache__")
    return shutil.copytree(ROOT / "examples" / "models", copy, ignore=ignored)


@pytest.fixture(scope="module")
def real(oracle_installed: None, repository: Path) -> Iterator[Server]:
    with start_tritonserver(repository, **COMPLETE, allow_metrics=False) as server:
        yield server


@pytest.fixture(scope="module", params=["inline", "process"])
def ours(repository: Path, request: pytest.FixtureRequest) -> Iterator[Server]:
    host = f"python,host={request.param}"
    with start_reference_server(repository, allow_metrics=False, backend_config=host) as server:
        yield server


def ask_models(server: Server) -> str:
    command = [sys.executable, str(ROOT / "examples" / "ask_models.py"), "--url", server.grpc]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_the_client_shows_the_same_of_both(real: Server, ours: Server):
    assert ask_models(ours) == ask_models(real) == SHOWN


@pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS)
def test_both_say_the_same(request_: bytes, real: Server, ours: Server):
    assert exchange(ours.http, request_) == exchange(real.http, request_)
