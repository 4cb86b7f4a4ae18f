"""The gauges of the machine, read from a /proc of the test."""

import pytest
from server.support.clock import SECOND_NS, ManualClock

from reference_server.observability.server_metrics import HOST_FAMILIES, HostMetrics


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def proc(tmp_path):
    (tmp_path / "meminfo").write_text(
        "MemTotal:       1000 kB\nMemFree:         100 kB\nMemAvailable:    300 kB\n"
    )
    tick(tmp_path, 100, 100)
    return tmp_path


def tick(proc, busy, idle):
    """Write the busy and idle ticks of the CPU, distributed over all states."""
    (proc / "stat").write_text(
        f"cpu  {busy} {busy} {busy} {idle} {idle} {busy} {busy} {busy} 77 88\ncpu0 9 9 9 9\n"
    )


def values(host):
    return {name: sample.value for name, (sample,) in host.samples().items()}


def test_memory_in_use_is_what_is_not_available(clock, proc):
    read = values(HostMetrics(clock, 0, proc=proc))
    assert read["nv_cpu_memory_total_bytes"] == 1000 * 1024
    assert read["nv_cpu_memory_used_bytes"] == 700 * 1024


def test_utilization_is_measured_since_the_last_reading(clock, proc):
    host = HostMetrics(clock, 0, proc=proc)
    assert values(host)["nv_cpu_utilization"] == 0
    tick(proc, 101, 107)
    assert values(host)["nv_cpu_utilization"] == 6 / (6 + 14)
    assert values(host)["nv_cpu_utilization"] == 0  # no tick since
    tick(proc, 105, 107)
    assert values(host)["nv_cpu_utilization"] == 1


def test_a_reading_is_kept_for_the_interval(clock, proc):
    host = HostMetrics(clock, 2 * SECOND_NS, proc=proc)
    values(host)
    tick(proc, 101, 101)
    clock.advance(seconds=1.9)
    assert values(host)["nv_cpu_utilization"] == 0
    clock.advance(seconds=0.1)
    assert values(host)["nv_cpu_utilization"] == 0.75


def test_there_is_no_pinned_memory(clock, proc):
    read = values(HostMetrics(clock, 0, proc=proc, cpu=False))
    assert read == {"nv_pinned_memory_pool_total_bytes": 0, "nv_pinned_memory_pool_used_bytes": 0}


def test_without_proc_there_are_no_gauges_of_the_cpu(clock, tmp_path):
    read = values(HostMetrics(clock, 0, proc=tmp_path))
    assert [name for name in read if "cpu" in name] == []


def test_this_machine_has_gauges_of_the_cpu(clock):
    host = HostMetrics(clock, 0)
    if (host._proc / "stat").exists():
        read = values(host)
        assert set(read) == {head.name for head in HOST_FAMILIES}
        assert 0 < read["nv_cpu_memory_used_bytes"] < read["nv_cpu_memory_total_bytes"]
