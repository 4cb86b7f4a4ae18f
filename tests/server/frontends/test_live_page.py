"""The live page: its content, its security policy, and the option to disable it."""

import json
import logging
import re

import pytest
from server.support.clock import ManualClock
from server.support.frontend import Here, Shelf, served
from server.support.http import Client, get
from server.support.model_folders import VECTOR

from reference_server.core.metadata import ServerMetadata
from reference_server.core.telemetry import MetricKind
from reference_server.frontends.http.pages import MetricsHandlers
from reference_server.gateway.gateway import MetricsGateway, new_registry
from reference_server.gateway.status import StatusGateway
from reference_server.observability.logs import LogTail
from reference_server.observability.server_metrics import HostMetrics
from reference_server.repository.versions import State, VersionStatus

STATUSES = [
    VersionStatus("m", 1, State.READY),
    VersionStatus("lost", None, State.UNAVAILABLE, "no <version> of it"),
]


class Statuses(Shelf):
    """A repository with a model that is ready, and one that is not."""

    def statuses(self):
        return STATUSES


@pytest.fixture
def registry():
    return new_registry()


@pytest.fixture
def tail():
    return LogTail()


@pytest.fixture
def client(registry, tail, tmp_path):
    (tmp_path / "stat").write_text("cpu 1 1 1 1 1 1 1 1")
    (tmp_path / "meminfo").write_text("MemTotal: 1000 kB\nMemAvailable: 300 kB\n")
    shelf = Statuses(served(VECTOR))
    metrics = MetricsGateway(shelf, registry, HostMetrics(ManualClock(), 0, cpu=False))
    metadata = ServerMetadata("triton", "2.73.0", ())
    status = StatusGateway(
        *(shelf, registry, metadata, ManualClock(now_ns=5_000_000)),
        http_port=8000,
        log=tail,
        host=HostMetrics(ManualClock(), 0, proc=tmp_path),
    )
    return Client(MetricsHandlers(metrics, Here(), status).handle)


def asked(client, target, method="GET"):
    client.send(get(target, method=method))
    (reply,) = client.replies()
    return reply


def test_the_page_is_one_file_and_runs_only_its_own_script(client):
    reply = asked(client, "/")
    headers = dict(line.split(": ", 1) for line in reply.head[1:])
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; connect-src 'self'; ")
    assert "unsafe" not in policy
    page = reply.body.decode()
    foreign = r"""\b(?:src|href|style|on[a-z]+)=["']|@import|url\(|innerHTML|https?://"""
    assert not re.search(foreign, page)
    assert len(re.findall("'sha256-[^']+'", policy)) == 2


def test_the_status_has_loaded_and_failed_models(client):
    reply = asked(client, "/status.json")
    assert "Cache-Control: no-store" in reply.head
    status = json.loads(reply.body)
    ready, lost = status.pop("models")
    assert status == {
        "title": "Reference server",
        "server": "triton, standing in for Triton 2.73.0",
        "at_ms": 5.0,
        "http_port": 8000,
        "log": True,
        "history": [],
        "machine": {"used": 700 * 1024, "total": 1000 * 1024},
    }
    assert (ready["state"], ready["pending"], ready["batches"]) == ("READY", 0, [])
    assert ready["counts"] == dict.fromkeys(
        ("success", "fail", "queue", "input", "infer", "output"), 0
    )
    assert lost == {
        "name": "lost",
        "version": None,
        "state": "UNAVAILABLE",
        "reason": "no <version> of it",
    }


def test_the_status_has_the_counters_of_ge_runtime(client, registry):
    def count(name, amount, kind=MetricKind.COUNTER, **labels):
        holds.append(registry.hold(f"ge_runtime_{name}", "", kind))
        holds[-1].series({"model": "m", "version": "1", **labels}).increment(amount)

    holds = []
    count("useful_elements_total", 30)
    count("executed_elements_total", 40)
    count("gear_launches_total", 2, gear="batch 4")
    for instance in ("m_0", "m_1"):
        count("total_bytes", 100, MetricKind.GAUGE, instance=instance)
    (status, _) = json.loads(asked(client, "/status.json").body)["models"]
    assert (status["padding"], status["memory_bytes"]) == (0.25, 200)
    assert status["gears"] == [["batch 4", 2]]


def test_the_status_has_sums_of_the_last_ten_minutes():
    clock = ManualClock()
    model = served(VECTOR)
    shelf = Statuses(model)
    status = StatusGateway(shelf, new_registry(), ServerMetadata("t", "2", ()), clock)
    for _ in range(250):
        status.sample()
        clock.advance(ns=2_500_000_000)
        model.statistics._totals.success.count += 2
        model.statistics._totals.fail.count += 1
    history = status.read()["history"]
    assert len(history) == 120
    assert [history[0], history[-1]] == [(25_000, 20, 10, 0), (620_000, 496, 248, 0)]


def test_the_log_is_returned_after_the_given_line(client, tail):
    for text in ("one", "two"):
        tail.handle(logging.makeLogRecord({"levelno": logging.INFO, "msg": text}))
    assert [number for number, _ in json.loads(asked(client, "/log.json").body)] == [1, 2]
    ((number, line),) = json.loads(asked(client, "/log.json?after=1").body)
    assert (number, line) == (2, "two")
    assert json.loads(asked(client, "/log.json?after=2").body) == []
    assert len(json.loads(asked(client, "/log.json?after=x").body)) == 2


@pytest.mark.parametrize("target", ["/", "/status.json", "/log.json"])
def test_the_page_is_read_only(client, target):
    assert asked(client, target, "POST").head[0] == "HTTP/1.1 405 Not Allowed"
