"""Warm-up, compared with NVIDIA's server: its counters, and its reasons for failed loads."""

from __future__ import annotations

from pathlib import Path

import pytest
from contract.count_probes import WARM_PROBES
from contract.probes import write_probe
from contract.serving import both_servers
from contract.statistics_scripts import counters
from contract.wire import index
from support.servers import COMPLETE, Flag, Server
from support.waiting import eventually

pytestmark = pytest.mark.oracle

FLAGS: dict[str, Flag] = {
    **COMPLETE,
    "allow_grpc": False,
    "allow_metrics": False,
    "exit_on_error": False,
    "model_load_thread_count": 8,
    "cache_config": "local,size=65536",
}
#: The rows that each model executes in its warm-up, and in how many batches.
EXECUTED = {
    "warm_zeros": (6, 3),
    "warm_random": (2, 1),
    "warm_file": (2, 1),
    "warm_texts": (2, 1),
    "warm_empty_texts": (1, 1),
    "warm_twice": (3, 2),
    "warm_instances": (2, 2),
    "warm_not_at_all": (0, 0),
    "warm_unbatched": (1, 1),
    "warm_cached": (1, 1),
    "warm_dynamic": (1, 1),
}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the models to one folder for both servers, so that paths in messages are equal."""
    folder = tmp_path_factory.mktemp("warm")
    for name, (probe, files) in WARM_PROBES.items():
        write_probe(folder, name, probe)
        (folder / name / "warmup").mkdir()
        for file, data in files.items():
            (folder / name / "warmup" / file).write_bytes(data)
    return folder


triton, reference = both_servers("/v2/health/live", **FLAGS)


@pytest.mark.parametrize("model", EXECUTED)
def test_samples_are_counted_when_the_model_is_ready(model: str, triton: Server, reference: Server):
    def executed() -> tuple[int, int]:
        real = counters(triton.http, model)
        return real["inference_count"], real["execution_count"]

    ours = counters(reference.http, model)
    # The real server may count a batch when it has answered, and so be ready before.
    assert eventually(executed, EXECUTED[model]) == EXECUTED[model]
    assert ours == counters(triton.http, model)


@pytest.mark.parametrize("model", [name for name in WARM_PROBES if name not in EXECUTED])
def test_a_warm_up_that_fails_fails_the_load(model: str, triton: Server, reference: Server):
    real = index(triton.http)[model]
    assert real.get("state") != "READY"
    assert index(reference.http)[model] == real


def test_ensembles_have_no_warm_up(triton: Server, reference: Server):
    for server in (triton, reference):
        assert "model_warmup can not be specified for ensemble 'warm_ensemble'" in server.log
