"""Graphs of others on both servers: each request is answered as ONNX Runtime answers it alone.

Their config.pbtxt are in `runtime.support.published_graphs`; `make graphs` fetches them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from contract.probes import MODELS
from contract.test_runtime_features import LIVE, at_once, outputs, request
from runtime.support.published_graphs import PUBLISHED, Solo
from support.servers import COMPLETE, Server, start_reference_server, start_tritonserver

pytestmark = [pytest.mark.oracle, pytest.mark.slow]

STEPS = 3
#: Each server would otherwise measure executions of each model for a second.
COST = """
parameters { key: "cost" value { string_value: "launch_us=100, element_ns=1, element2_ns=0" } }
"""


def model_of(name: str) -> str:
    return name.replace(" ", "_").replace(",", "")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("published")
    for name, graph in PUBLISHED.items():
        try:
            written = graph.write(folder, model_of(name))
        except FileNotFoundError:
            continue
        (written / "1" / "model.py").write_bytes((MODELS / "graph.py").read_bytes())
        with (written / "config.pbtxt").open("a") as config:
            config.write(COST)
    return folder


@pytest.fixture(scope="module")
def servers(oracle_installed: None, repository: Path) -> Iterator[tuple[Server, Server]]:
    """The real server and the reference server."""
    flags = COMPLETE | {"allow_grpc": False, "model_load_thread_count": 4}
    with (
        start_tritonserver(repository, ready_path=LIVE, **flags) as real,
        start_reference_server(repository, ready_path=LIVE, **flags) as reference,
    ):
        yield real, reference


@pytest.mark.parametrize("name", PUBLISHED)
def test_answers_are_those_of_onnx_runtime_for_each_request_by_itself(name, repository, servers):
    graph, folder = PUBLISHED[name], repository / model_of(name)
    if not folder.exists():
        pytest.skip(f"needs {graph.wheel.file}: make graphs")
    for server in servers:
        solo, rng = Solo(graph, folder), np.random.default_rng(5)
        steps = STEPS if graph.states else 1
        for step in range(steps):
            drawn = graph.draw(rng)
            sent = []
            for place, inputs in enumerate(drawn):
                told = {
                    "sequence_id": place + 1,
                    "sequence_start": step == 0,
                    "sequence_end": step + 1 == steps,
                }
                fields = {"parameters": told} if graph.states else {}
                sent.append(request(folder.name, inputs, **fields))
            for place, reply in enumerate(at_once(server, sent)):
                expected = solo.answer(place, drawn[place])
                for output, found in outputs(reply).items():
                    np.testing.assert_allclose(found, expected[output], rtol=1e-5, atol=1e-5)
