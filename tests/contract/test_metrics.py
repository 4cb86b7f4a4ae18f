"""The metrics of both servers: equal names and texts, and equal changes.

A page is compared family by family. Only the series within a family have no order, because the real
server keeps them in a hash table.
"""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from contract.casebook import Case, get, infer, tensor
from contract.cases import metrics_port
from contract.probes import write_probes
from contract.serving import both_servers
from contract.wire import exchange
from support.servers import COMPLETE, Flag, Server
from support.waiting import eventually

pytestmark = pytest.mark.oracle

PROBES = ("batched", "faults", "chain", "elaborate", "meter", "meter_too", "held")
FLAGS: dict[str, Flag] = {
    **COMPLETE,
    "allow_grpc": False,
    "model_load_thread_count": 8,
    "metrics_interval_ms": 100,
    # Without a GPU the real server still reports a pool, of the configured size.
    "pinned_memory_pool_byte_size": 0,
}
Page = list[tuple[list[str], list[str]]]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("metered")
    write_probes(folder, *PROBES)
    return folder


triton, reference = both_servers(**FLAGS)


def text(server: Server) -> str:
    """Return the metrics page."""
    return exchange(server.metrics, get("/metrics")).replies[0].body.decode()


def page(server: Server) -> Page:
    """Return the families in order, each with its head lines and its series, in any order.

    The lines of one histogram stay together.
    """
    families: Page = []
    for line in text(server).splitlines():
        if line.startswith("#"):
            if not families or families[-1][1]:
                families.append(([], []))
            families[-1][0].append(line)
        elif re.match(r"\w+_(sum|bucket)[{ ]", line):
            families[-1][1][-1] += f"\n{line}"
        else:
            families[-1][1].append(line)
    return [(head, sorted(series)) for head, series in families]


def custom(families: Page) -> Page:
    """Return the families that models have created."""
    return [family for family in families if "custom_" in family[0][-1]]


def measure(server: Server, what: str, model: str = "meter") -> str:
    """Make a model change its metrics, and return the values that it reads."""
    request = infer(model, tensor("what", "BYTES", [1], [what]))
    content = json.loads(exchange(server.http, request).replies[0].body)
    return content["outputs"][0]["data"][0]


# -------------------------------------------------------------------------- what models count

STEPS = {
    "nothing": 'custom_counter{model="meter",what="loads"} 1\n',
    "numbers": 'custom_gauge{number="5"} 0.3\n',
    "labels": 'custom_counter{C="{}=,",_x="",a="x\\\\y\\"z\\nw é",b="2"} 2\n',
    "histograms": 'custom_seconds_bucket{of="odd",le="1.5"} 2\n',
    "share": 'custom_shared{of="all"} 3\n',
    "drop a metric": 'custom_gauge{dropped="yes"} 4\n',
    "drop a family": "# HELP custom_again The first text\n"
    '# TYPE custom_again gauge\ncustom_again{seen="yes"} -2\n',
    "drop all of a family": "# TYPE custom_counter counter\n",
    "join the server": 'nv_inference_count{mine="yes"} 7\n',
}


@pytest.mark.parametrize("what", STEPS)
def test_what_models_count_is_shown_alike(what: str, triton: Server, reference: Server):
    told = measure(triton, what)
    assert measure(reference, what) == told
    real = text(triton)
    assert STEPS[what] in real
    assert custom(page(reference)) == custom(page(triton)) != []


def test_models_share_a_family(triton: Server, reference: Server):
    told = [[measure(server, "share", model) for model in ("meter", "meter_too")]
            for server in (triton, reference)]  # fmt: skip
    (first, second) = map(float, told[0])
    assert second == first + 3
    assert told[1] == told[0]


# ----------------------------------------------------------------------------- the server's own


def test_the_families_are_the_same_in_the_same_order(triton: Server, reference: Server):
    real, ours = page(triton), page(reference)
    assert [head for head, _ in ours] == [head for head, _ in real]


def test_the_series_are_the_same(triton: Server, reference: Server):
    def labelled(server: Server) -> list[str]:
        built_in = [series for head, series in page(server) if " nv_" in head[0]]
        names = [line.rpartition(" ")[0] for series in built_in for line in series]
        return [name for name in names if "mine=" not in name]

    real = labelled(triton)
    assert 'nv_inference_count{_team="blue",model="elaborate",version="1"}' in real
    assert labelled(reference) == real


def test_durations_add_up_where_the_real_ones_do(triton: Server, reference: Server):
    row = infer("batched", tensor("X", "FP32", [1, 4], [1, 2, 3, 4]))
    chained = infer("chain", tensor("IN", "FP32", [1, 4], [1, 2, 3, 4]))

    def durations(server: Server) -> dict[str, bool]:
        for request in (row, chained):
            for _ in range(5):
                exchange(server.http, request)
        pattern = r"(?m)^(nv_inference_\w+_us\{model=\"(?:batched|chain)\".*) (\d+)$"
        return {series: int(value) > 0 for series, value in re.findall(pattern, text(server))}

    every = dict.fromkeys(durations(triton), True)
    assert len(every) == 10
    assert eventually(lambda: durations(triton), wanted=every) == every
    assert eventually(lambda: durations(reference), wanted=every) == every


@pytest.mark.parametrize("server", ["triton", "reference"])
def test_requests_are_pending_until_they_run(
    server: str, repository: Path, request: pytest.FixtureRequest
):
    running = request.getfixturevalue(server)
    line = 'nv_inference_pending_request_count{{model="held",version="1"}} {}\n'.format
    go = repository / "held" / "go"
    with ThreadPoolExecutor(4) as clients:
        try:
            asked = infer("held", tensor("X", "FP32", [1], [1]))
            replies = [clients.submit(exchange, running.http, asked) for _ in range(4)]
            assert eventually(lambda: line(3) in text(running), wanted=True)
        finally:
            go.touch()
        assert [reply.result().replies[0].status for reply in replies] == [200] * 4
    go.unlink()
    assert eventually(lambda: line(0) in text(running), wanted=True)


# ------------------------------------------------------------------------------------- the port


@pytest.mark.parametrize("case", metrics_port.CASES, ids=str)
def test_the_ports_answer_alike(case: Case, triton: Server, reference: Server):
    real, ours = (
        exchange(server.metrics, case.request, replies=case.replies)
        for server in (triton, reference)
    )
    status = real.replies[-1].status if real.replies else None
    assert status == case.status
    assert case.says in str(real)
    assert str(case.unstable(ours)) == str(case.unstable(real))
