"""Devices and contexts: which is current in a thread, and what is destroyed with them."""

import pytest
from runtime.support.threads import Beside
from simulator.support.driving import Blocked, content, ok

from ascend_simulator import SimulatorViolation, current
from ascend_simulator.codes import DeviceStatus
from ascend_simulator.streams.tasks import Task


@pytest.fixture
def two(machine):
    """`acl` on a machine of two devices, none set."""
    acl = machine(devices=2)
    ok(acl.init())
    return acl


def test_calls_that_need_a_context_are_refused_without_one(two):
    assert two.rt.get_device() == (0, 107002)
    assert two.rt.get_context() == (0, 107002)
    assert two.rt.get_mem_info(1) == (0, 0, 107002)
    assert two.rt.malloc(64, 0) == (0, 107002)
    assert two.rt.malloc_host(64) == (0, 107002)
    assert two.rt.create_stream() == (0, 107002)
    assert two.rt.create_event() == (0, 107002)
    assert two.rt.synchronize_device() == 107002
    assert two.rt.synchronize_stream(0) == 107002
    assert two.rt.memcpy(1 << 20, 1, 1 << 21, 1, 0) == 107002
    assert two.rt.host_register(1 << 20, 1, 0) == (0, 107002)


def test_a_thread_without_a_context_cannot_use_what_another_made(two):
    ok(two.rt.set_device(0))
    device, pinned = ok(two.rt.malloc(64, 0)), ok(two.rt.malloc_host(64))
    event = ok(two.rt.create_event())
    ok(two.rt.record_event(event, 0))
    for call, thing in [
        (two.rt.free, device),
        (two.rt.free_host, pinned),
        (two.rt.synchronize_event, event),
        (two.rt.destroy_event, event),
    ]:
        assert Beside(call, thing).result() == 107002
    assert Beside(two.rt.query_event_status, event).result() == (0, 107002)


def test_contexts_do_not_pass_to_other_threads(two):
    ok(two.rt.set_device(1))
    context = ok(two.rt.get_context())
    assert Beside(two.rt.get_context).result() == (0, 107002)

    def joined():
        ok(two.rt.set_context(context))
        return two.rt.get_device(), two.rt.get_context()

    assert Beside(joined).result() == ((1, 0), (context, 0))


def test_threads_share_the_default_context_of_a_device(two):
    ok(two.rt.set_device(0))

    def other():
        ok(two.rt.set_device(0))
        return ok(two.rt.get_context())

    assert Beside(other).result() == ok(two.rt.get_context())


@pytest.mark.parametrize("device", [-1, 2, 100])
def test_a_device_that_is_not_there(two, device):
    assert two.rt.set_device(device) == 107001
    assert two.rt.reset_device(device) == 107001
    assert two.rt.reset_device_force(device) == 107001
    assert two.rt.create_context(device) == (0, 107001)
    assert two.rt.get_device() == (0, 107002)


def test_visible_devices_are_counted_from_zero(machine):
    acl = machine(devices=4, visible_devices=(2, 3, 7))
    ok(acl.init())
    assert acl.rt.get_device_count() == (2, 0)
    assert [acl.rt.set_device(device) for device in range(3)] == [0, 0, 107001]


@pytest.mark.parametrize("visible", [(), (1, 0), (0, 0), (4, 1)])
def test_no_device_is_visible_if_the_list_is_not_ascending(machine, visible):
    acl = machine(devices=2, visible_devices=visible)
    ok(acl.init())
    assert acl.rt.get_device_count() == (0, 207004)
    assert acl.rt.set_device(0) == 107001


def test_the_default_context_lives_until_the_last_reset(two):
    ok(two.rt.set_device(0))
    ok(two.rt.set_device(0))
    context = ok(two.rt.get_context())
    ok(two.rt.reset_device(0))
    assert two.rt.get_context() == (context, 0)
    ok(two.rt.reset_device(0))
    assert two.rt.get_context() == (0, 107002)
    assert two.rt.set_context(context) == 107000
    ok(two.rt.set_device(0))
    assert ok(two.rt.get_context()) != context


def test_contexts_go_before_the_last_reset_of_their_device(two):
    ok(two.rt.create_context(0))
    ok(two.rt.set_device(0))
    ptr = ok(two.rt.malloc(64, 0))
    with pytest.raises(SimulatorViolation, match=r"device\.reset-leaks.*context of device 0"):
        two.rt.reset_device(0)
    assert current().memory.find(ptr) is not None  # a context of the device still exists


def test_reset_by_force_is_not_counted(two):
    for _ in range(2):
        ok(two.rt.set_device(0))
        ok(two.rt.set_device(0))
        ok(two.rt.reset_device_force(0))
    ok(two.rt.set_device(0))
    ok(two.rt.reset_device(0))
    assert two.rt.get_context() == (0, 107002)


def test_reset_by_force_takes_everything_at_once(two):
    ok(two.rt.set_device(0))
    ok(two.rt.set_device(0))
    explicit = ok(two.rt.create_context(0))
    ok(two.rt.malloc(64, 0))
    ok(two.rt.create_stream())
    ok(two.rt.create_event())
    ok(two.rt.reset_device_force(0))
    assert two.rt.set_context(explicit) == 107000
    assert current().live() == []
    assert current().memory.used(0) == 0


def test_reset_waits_for_tasks(two):
    ok(two.rt.set_device(0))
    done = []
    blocked = Blocked()
    current().stream(0, "test").submit(Task(lambda: done.append("done"), (), (), "notes"))
    resetting = Beside(two.rt.reset_device, 0)
    assert blocked.entered.wait(30)
    assert not resetting.is_done()
    blocked.release()
    assert resetting.result() == 0
    assert done == ["done"]


def test_a_created_context_is_current_and_separate(two):
    ok(two.rt.set_device(0))
    default = ok(two.rt.get_context())
    created = ok(two.rt.create_context(1))
    assert created != default
    assert two.rt.get_context() == (created, 0)
    assert two.rt.get_device() == (1, 0)
    ok(two.rt.set_context(default))
    assert two.rt.get_device() == (0, 0)


def test_a_destroyed_context_is_current_nowhere(two):
    context = ok(two.rt.create_context(0))
    ok(two.rt.destroy_context(context))
    assert two.rt.get_context() == (0, 107002)
    assert two.rt.set_context(context) == 107000
    assert two.rt.destroy_context(context) == 107002


def test_no_context_is_refused(two):
    assert two.rt.set_context(0) == 100000
    assert two.rt.destroy_context(0) == 100000


def test_a_default_context_is_not_destroyed(two):
    ok(two.rt.set_device(0))
    context = ok(two.rt.get_context())
    assert two.rt.destroy_context(context) == 107002
    assert two.rt.get_context() == (context, 0)


def test_a_stream_of_another_context_is_waited_for(two):
    stream = ok(two.rt.create_stream()) if two.rt.set_device(0) == 0 else 0
    block = ok(two.rt.malloc(64, 0))
    ok(two.rt.memset_async(block, 64, 7, 64, stream))
    second = ok(two.rt.create_context(0))
    ok(two.rt.synchronize_stream(stream))
    assert content(block, 64) == bytes([7]) * 64
    assert two.rt.get_context() == (second, 0)


def test_streams_and_events_of_another_context_are_refused(two):
    first = ok(two.rt.create_context(0))
    stream, event = ok(two.rt.create_stream()), ok(two.rt.create_event())
    second = ok(two.rt.create_context(0))
    assert two.rt.synchronize_stream_with_timeout(stream, -1) == 107003
    assert two.rt.destroy_stream(stream) == 107003
    assert two.rt.record_event(event, 0) == 107003
    assert two.rt.record_event(event, stream) == 107003
    assert two.rt.stream_wait_event(0, event) == 107003
    assert two.rt.synchronize_event(event) == 107003
    assert two.rt.query_event_status(event) == (0, 107003)
    assert two.rt.destroy_event(event) == 107003
    assert two.rt.memset_async(ok(two.rt.malloc(64, 0)), 64, 0, 64, stream) == 107003
    ok(two.rt.set_context(first))
    ok(two.rt.synchronize_stream(stream))
    assert second != first


def test_the_status_of_a_device_is_returned(acl):
    assert acl.rt.query_device_status(0) == (0, 0)
    current().device_status = DeviceStatus.ACL_RT_DEVICE_STATUS_ABNORMAL
    assert acl.rt.query_device_status(0) == (1, 0)
    for call in (acl.rt.query_device_status, acl.rt.get_device_utilization_rate):
        assert call(1)[1] == 107001


def test_the_utilization_of_a_device_is_returned(started):
    acl = started(hbm_mib=8)
    ok(acl.rt.malloc(current().settings.hbm_bytes // 2 - 32, 0))
    expected = {"vector_utilization": -1, "aicpu_utilization": -1, "memory_utilization": 50}
    blocked = Blocked()
    assert ok(acl.rt.get_device_utilization_rate(0)) == {"cube_utilization": 100, **expected}
    blocked.release()
    ok(acl.rt.synchronize_stream(0))
    assert ok(acl.rt.get_device_utilization_rate(0)) == {"cube_utilization": 0, **expected}
