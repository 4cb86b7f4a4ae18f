"""Fault injection: places, counts and actions."""

import pytest
from simulator.support.driving import H2D, MIB, ok

from ascend_simulator import current
from ascend_simulator.codes import Refused
from ascend_simulator.faults import Faults
from ascend_simulator.streams.tasks import Task


@pytest.fixture
def acts():
    """The effects of a plan's actions."""
    return []


@pytest.fixture
def faults(acts):
    return Faults(lambda: acts.append("lost"), lambda nbytes: acts.append(nbytes), lambda: None)


def struck(faults, place, times):
    """Return the codes of this many strikes, 0 for none."""
    codes = []
    for _ in range(times):
        try:
            faults.strike(place)
            codes.append(0)
        except Refused as refused:
            codes.append(refused.code)
    return codes


def test_each_fault_happens_once_at_its_count(faults):
    faults.arm("malloc@2=207001; malloc@4=207018;execute@1=507011")
    assert struck(faults, "malloc", 5) == [0, 207001, 0, 207018, 0]
    assert faults.is_armed
    assert struck(faults, "execute", 2) == [507011, 0]
    assert not faults.is_armed


def test_counts_begin_when_the_plan_is_made(faults):
    assert struck(faults, "sync", 3) == [0, 0, 0]
    faults.arm("sync@2=507046")
    assert struck(faults, "sync", 2) == [0, 507046]


def test_a_cleared_plan_does_nothing(faults):
    faults.arm("copy@1=507011")
    faults.clear()
    assert struck(faults, "copy", 1) == [0]


def test_each_action_takes_effect(faults, acts):
    faults.arm("mem_info@1=taken:5000;execute@1=slow:0;call@1=lost;load@1=245000")
    assert struck(faults, "mem_info", 1) == struck(faults, "execute", 1) == [0]
    assert struck(faults, "call", 1) == [507010]
    assert acts == [5000, "lost"]


@pytest.mark.parametrize("fault", ["hang", "slow:6"])
def test_the_shorter_limit_of_operator_and_wait_ends_a_hang_without_a_delay(acl, fault):
    def failing(place, task=lambda: current().faults.strike("execute")):
        current().faults.arm(f"execute@1={fault}")
        stream = current().stream(place, "test")
        stream.submit(Task(task, (), (), "test"))

    ok(acl.rt.set_op_execute_time_out(5))
    failing(0)
    assert acl.rt.synchronize_stream_with_timeout(0, 5000) == 507014
    assert acl.rt.synchronize_stream_with_timeout(0, 5000) == 0
    failing(0)
    assert acl.rt.synchronize_stream_with_timeout(0, 4999) == 507046
    assert acl.rt.synchronize_stream_with_timeout(0, 4999) == 507046
    assert acl.rt.synchronize_stream(0) == 507014


def test_an_operator_within_its_limit_is_only_slow(acl):
    ok(acl.rt.set_op_execute_time_out(1))
    current().faults.arm("execute@1=slow:0")
    current().faults.strike("execute")


UNREADABLE = """
    malloc@1=hang execute@1=hang:1
    malloc malloc@0=1 malloc@x=1 malloc@-1=1 malloc@1 malloc@1= malloc@1=bad nowhere@1=1
    malloc@1=slow:x malloc@1=lost:1 device_lost@1=3 malloc@1=0 malloc@1=-1 malloc@1=5:1
    execute@1=slow:-1 execute@1=slow:nan execute@1=slow:inf mem_info@1=taken:-1
"""


@pytest.mark.parametrize("plan", UNREADABLE.split())
def test_an_invalid_plan_is_refused(faults, plan):
    with pytest.raises(ValueError, match=f"found '{plan}', expected PLACE@N=ACTION"):
        faults.arm(f"malloc@1=207001;{plan}")
    assert not faults.is_armed


def test_the_third_malloc_fails(started):
    acl = started(faults="malloc@3=207001;malloc_host@1=200000")
    assert [acl.rt.malloc(64, 0)[1] for _ in range(4)] == [0, 0, 207001, 0]
    assert acl.get_recent_err_msg() == "injected at malloc"
    assert acl.rt.malloc_host(64) == (0, 200000)


def test_a_copy_fails_at_the_next_wait(acl):
    device, pinned = ok(acl.rt.malloc(64, 0)), ok(acl.rt.malloc_host(64))
    current().faults.arm("copy@2=507053;copy@3=507053")
    ok(acl.rt.memcpy(device, 64, pinned, 64, H2D))
    ok(acl.rt.memcpy_async(device, 64, pinned, 64, H2D, 0))
    assert acl.rt.synchronize_stream(0) == 507053
    assert acl.rt.memcpy(device, 64, pinned, 64, H2D) == 507053


def test_a_wait_can_be_made_to_fail(acl):
    current().faults.arm("sync@1=507046;sync@2=507047;sync@3=507899")
    event = ok(acl.rt.create_event())
    ok(acl.rt.record_event(event, 0))
    assert acl.rt.synchronize_stream(0) == 507046
    assert acl.rt.synchronize_event(event) == 507047
    assert acl.rt.synchronize_device() == 507899
    assert acl.rt.synchronize_stream(0) == 0


def test_the_device_is_lost_at_a_call_and_stays_so(started):
    acl = started(faults="device_lost@4")  # init and set_device were two
    assert [acl.rt.malloc(64, 0)[1] for _ in range(4)] == [0, 507010, 507899, 507899]


def test_others_take_memory_between_asking_and_allocating(started):
    acl = started(hbm_mib=8, faults=f"mem_info@2=taken:{5 * MIB}")
    assert acl.rt.get_mem_info(1) == (8 * MIB, 8 * MIB, 0)
    assert acl.rt.get_mem_info(1) == (8 * MIB, 8 * MIB, 0)
    assert acl.rt.malloc(4 * MIB, 2) == (0, 207001)
    assert acl.rt.get_mem_info(1) == (3 * MIB, 8 * MIB, 0)
