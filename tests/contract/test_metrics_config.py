"""`--metrics-config`, compared with NVIDIA's server: summaries, and no counters."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from contract.casebook import get, infer, tensor
from contract.count_probes import CACHE_PROBES
from contract.probes import write_probe
from contract.wire import exchange
from support.servers import COMPLETE, Flag, Server, start_reference_server, start_tritonserver
from support.waiting import eventually

pytestmark = pytest.mark.oracle

MODELS = ("cached", "over_cached", "cached_step", "uncached_step", "cached_chain")
FLAGS: dict[str, Flag] = {
    **COMPLETE,
    "allow_grpc": False,
    "metrics_interval_ms": 100,
    "pinned_memory_pool_byte_size": 0,
    "cache_config": "local,size=65536",
}
CONFIGS = {
    "summaries": ["summary_latencies=true", "counter_latencies=0"],
    "no counters": [
        *("counter_latencies=false", "summary_latencies=true", "summary_latencies=false"),
        "summary_quantiles=0.25:0.1,a:b,0.75:0.01",
    ],
}

Pages = tuple[str, str]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("metered")
    for name in MODELS:
        write_probe(folder, name, CACHE_PROBES[name])
    return folder


@pytest.fixture(scope="module", params=CONFIGS)
def pages(
    oracle_installed: None, repository: Path, request: pytest.FixtureRequest
) -> Iterator[Pages]:
    """Return the pages of both servers after equal requests."""
    config: dict[str, Flag] = {"metrics_config": CONFIGS[request.param]}
    with ExitStack() as stack:
        servers = [
            stack.enter_context(start(repository, **FLAGS, **config))
            for start in (start_tritonserver, start_reference_server)
        ]
        for server in servers:
            ask(server)

        def found() -> Pages:
            real, ours = map(page, servers)
            return real, ours

        # What has been answered may be counted later; what differs to the end, a test will show.
        eventually(lambda: len(set(map(counts, found()))), 1)
        yield found()


def ask(server: Server) -> None:
    """Send requests that hit and miss, and wait until the cache has counted them."""
    for model in ("cached", "over_cached", "cached_chain"):
        for value in (1, 1, 2):
            exchange(server.http, infer(model, tensor("X", "FP32", [1], [value])))
    assert eventually(lambda: "nv_cache_num_lookups 9" in page(server), True)


def page(server: Server) -> str:
    """Return the metrics page, or "" while the port is not open."""
    try:
        return exchange(server.metrics, get("/metrics")).replies[0].body.decode()
    except ConnectionRefusedError:  # the real server opens it after it is ready
        return ""


def counts(text: str) -> tuple[tuple[str, str], ...]:
    """Return the counts by series."""
    summaries = re.findall(r"(?m)^(nv_\w+_count{.*}) (.+)$", text)
    counters = re.findall(r"(?m)^(nv_\w+(?:success|count|hits|misses)\w*{.*}) (.+)$", text)
    return tuple(sorted({*summaries, *counters}))


def test_the_families_are_the_same_in_the_same_order(pages: Pages):
    real, ours = (re.findall(r"(?m)^#.*$", text) for text in pages)
    assert ours == real


def test_the_series_are_the_same(pages: Pages):
    real, ours = (sorted(re.findall(r"(?m)^(nv_\S+) ", text)) for text in pages)
    assert ours == real


def test_what_counts_requests_has_counted_the_same(pages: Pages):
    real, ours = map(counts, pages)
    assert real
    assert ours == real


def test_quantiles_are_told_of_what_was_observed(pages: Pages):
    for text in pages:
        assert "quantile=" in text
        for name in re.findall(r"(?m)^(nv_\w+_summary_\w+)_count{(?=.*} [1-9])", text):
            values = re.findall(rf"(?m)^{name}{{.*quantile=.*}} (.+)$", text)
            assert [value for value in values if value != "Nan"]
