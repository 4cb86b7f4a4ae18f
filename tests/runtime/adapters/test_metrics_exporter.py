from collections import Counter

import pytest
from runtime.support.triton import PbUtils

from ge_runtime.adapters.metrics_exporter import MetricsExporter
from ge_runtime.counts import Counts, SharedCounts


@pytest.fixture
def pb_utils():
    return PbUtils()


@pytest.fixture
def metrics():
    return SharedCounts()


@pytest.fixture
def gauges():
    return {"total_bytes": 7}


@pytest.fixture
def exporter(pb_utils, metrics, gauges, timers):
    return MetricsExporter(
        pb_utils,
        model="m",
        version="1",
        instance="m_0",
        counts=metrics.snapshot,
        gauges=lambda: gauges,
    )


def test_at_most_one_timer_is_active(pb_utils, metrics, exporter, timers):
    for _ in range(3):
        metrics.add(Counts(launches=1))
        exporter.note()
    assert len(timers) == 1
    assert pb_utils.metric("launches_total").number == 0
    timers[0].fire()
    assert pb_utils.metric("launches_total").number == 3
    exporter.note()
    assert len(timers) == 2


def test_rows_of_executions_are_the_series_of_a_histogram(pb_utils, metrics, exporter):
    metrics.add(Counts(launch_rows=Counter({1: 3, 2: 1, 7: 1, 300: 1})))
    exporter.export()
    found = {
        bound: pb_utils.metric("launch_rows_bucket", le=bound).number
        for bound in ("1", "2", "4", "8", "256", "+Inf")
    }
    assert found == {"1": 3, "2": 4, "4": 4, "8": 5, "256": 5, "+Inf": 6}
    assert pb_utils.metric("launch_rows_count").number == 6
    assert pb_utils.metric("launch_rows_sum").number == 312


def test_unchanged_gauges_are_not_sent_again(pb_utils, exporter, monkeypatch):
    monkeypatch.setattr(pb_utils.metric("total_bytes"), "set", pytest.fail)
    exporter.export()
    assert pb_utils.metric("total_bytes").number == 7


def test_used_blocks_are_exported_until_idle_sequences_have_ended(
    pb_utils, gauges, exporter, timers
):
    gauges["state_blocks_used"] = 2
    exporter.note()
    timers[0].fire()
    gauges["state_blocks_used"] = 0
    timers[1].fire()
    assert pb_utils.metric("state_blocks_used").number == 0
    assert len(timers) == 2


def test_nothing_is_exported_after_closing(pb_utils, metrics, exporter, timers):
    exporter.note()
    exporter.close()
    assert timers[0].cancelled
    metrics.add(Counts(launches=1))
    timers[0].fire()  # expired before it was cancelled
    exporter.note()
    exporter.close()
    assert pb_utils.metric("launches_total").number == 0
    assert len(timers) == 1
