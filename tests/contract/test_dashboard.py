"""Every query of the dashboard, on a Prometheus server that scraped both servers under load."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import onnx
import pytest
from contract.casebook import infer, tensor
from contract.probes import MODELS, Probe, write_probe
from contract.runtime_models import RUNTIME_MODELS
from contract.wire import exchange
from support.prometheus import Prometheus, needs_prometheus, start_prometheus
from support.servers import COMPLETE, ROOT, Server, start_reference_server, start_tritonserver
from support.waiting import eventually

from tools.dashboard import RATE, ROWS, Panel

pytestmark = [pytest.mark.oracle, pytest.mark.slow, needs_prometheus]

GEARED = RUNTIME_MODELS["geared"]
PROBES = {
    "geared": Probe('backend: "python"\n' + GEARED.config, GEARED.code),
    "cached": Probe("""
        input { name: "X" data_type: TYPE_FP32 dims: [1] }
        output { name: "Y" data_type: TYPE_FP32 dims: [1] }
        response_cache { enable: true }
    """),
    "faults": Probe(
        """
        input { name: "what" data_type: TYPE_STRING dims: [1] }
        output { name: "Y" data_type: TYPE_FP32 dims: [1] }
        """,
        MODELS / "faults.py",
    ),
}
AUTOSCALING = ROOT / "observe" / "autoscaling.yml"
PANELS = [panel for panels in ROWS.values() for panel in panels]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("watched")
    for name, probe in PROBES.items():
        write_probe(folder, name, probe)
    onnx.save(GEARED.graph(), folder / "geared" / "1" / "model.onnx")
    return folder


@pytest.fixture(scope="module")
def watched(
    oracle_installed: None, repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prometheus]:
    """Run Prometheus while both servers receive requests."""
    flags = COMPLETE | {
        "cache_config": "local,size=65536",
        "allow_grpc": False,
        "metrics_interval_ms": 100,
    }
    with (
        start_tritonserver(repository, **flags) as triton,
        start_reference_server(repository, triton_version="newest", **flags) as reference,
    ):
        jobs = {"triton": triton.metrics, "reference": reference.metrics}
        rules = AUTOSCALING.read_text().replace("my_model", "geared")
        with start_prometheus(
            tmp_path_factory.mktemp("prometheus"), jobs, rules=rules.replace("15s", "500ms")
        ) as prometheus:
            ended = threading.Event()
            asking = [
                threading.Thread(target=ask, args=(server, ended)) for server in (triton, reference)
            ]
            for thread in asking:
                thread.start()
            try:
                yield prometheus
            finally:
                ended.set()
                for thread in asking:
                    thread.join()


def ask(server: Server, ended: threading.Event) -> None:
    """Send requests of all kinds, one after the other, until the end is requested."""
    numbers = random.Random(1)
    while not ended.wait(0.02):
        ids = [[numbers.randrange(9) for _ in range(numbers.choice([3, 7, 12]))]]
        once, again = numbers.random(), 1.0
        for request in (
            infer("geared", tensor("input_ids", "INT64", [1, len(ids[0])], ids)),
            infer("cached", tensor("X", "FP32", [1], [once])),
            infer("cached", tensor("X", "FP32", [1], [again])),
            infer("faults", tensor("what", "BYTES", [1], ["raise"])),
            b"no HTTP\r\n\r\n",
        ):
            exchange(server.http, request)


def of_job(query: str, job: str) -> str:
    return query.replace("$job", job).replace("$model", ".*").replace(RATE, "4s")


def has_values(prometheus: Prometheus, query: str) -> bool:
    return bool(prometheus.values(query))


@pytest.mark.parametrize("job", ["triton", "reference"])
@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel.title)
def test_a_panel_has_data(panel: Panel, job: str, watched: Prometheus):
    expects = job == "reference" or not panel.reference_only
    for query in panel.queries.values():
        asked = of_job(query, job)
        has_data = eventually(partial(has_values, watched, asked), expects)
        assert has_data == expects, query


def test_the_panels_tell_what_happened(watched: Prometheus):
    """Both servers show the requested models, the failures, and that half of the lookups hit."""
    told = {panel.title: next(iter(panel.queries.values())) for panel in PANELS}
    for job in ("triton", "reference"):

        def read(title: str, label: str = "model", job: str = job) -> dict[str, float]:
            found = watched.values(of_job(told[title], job))
            return {labels[label]: value for labels, value in found}

        assert read("Requests answered").keys() == PROBES.keys()
        assert eventually(lambda: 0.4 < read("Answers out of the cache")["cached"] < 0.6, True)
        assert 0 < read("Padding")["geared"] < 1
        assert read("Memory plan")["geared"] > 0
        reasons = watched.values(of_job(told["Failed requests by reason"], job))
        assert {(labels["model"], labels["reason"]) for labels, value in reasons if value} == {
            ("faults", "BACKEND")
        }


def test_the_rule_for_autoscaling_has_an_answer_for_both_servers(watched: Prometheus):
    def wanted() -> dict[str, float]:
        found = watched.values('job_model:replicas_wanted:ratio{model="geared"}')
        return {labels["job"]: value for labels, value in found if value > 0}

    # Prometheus wants two looks at rates first.
    assert eventually(lambda: wanted().keys(), {"reference", "triton"}) == {"reference", "triton"}
    # Some ten rows a second, of 667 that are said to be possible.
    assert all(value < 0.5 for value in wanted().values())
