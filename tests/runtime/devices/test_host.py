"""The host as a device, and the health of devices."""

import numpy as np
import pytest
from runtime.devices.conformance_device import CAPACITY, DeviceConformance

from ge_runtime.devices import PAGE, DeviceHealth, HostDevice
from ge_runtime.errors import EngineLost, OutOfMemory


class TestHostDevice(DeviceConformance):
    @pytest.fixture
    def device(self):
        return HostDevice("dev", CAPACITY)


@pytest.mark.parametrize("nbytes", [1, 64, PAGE, 100_001])
def test_memory_is_writable_bytes_at_a_page(nbytes):
    memory = HostDevice().allocate("x", nbytes).memory
    assert (memory.shape, memory.dtype) == ((nbytes,), np.uint8)
    assert memory.ctypes.data % PAGE == 0
    assert PAGE % 64 == 0
    memory[:] = 7
    assert (memory == 7).all()


def test_buffers_share_no_byte():
    device = HostDevice()
    first, second = device.allocate("x", 100).memory, device.allocate("x", 100).memory
    assert not np.shares_memory(first, second)


def test_without_a_limit_the_free_memory_is_unknown():
    device = HostDevice()
    assert (device.name, device.kind) == ("cpu", "cpu")
    assert (device.capacity_bytes, device.free_bytes) == (None, None)
    assert repr(device) == "<HostDevice cpu: 0 bytes in use>"


@pytest.mark.parametrize("nbytes", [2**62, 2**70], ids=["no such memory", "no such number"])
def test_memory_that_the_machine_lacks_is_refused_by_name(nbytes):
    device = HostDevice()
    device.allocate("weights", 5_000)
    with pytest.raises(OutOfMemory) as raised:
        device.allocate("arena", nbytes)
    assert str(raised.value) == (
        f"cpu: 'arena': found {nbytes:,} bytes wanted, expected no more than the machine has "
        "in addition to the 5,000 in use"
    )
    assert device.used_bytes == 5_000


def test_a_lost_device_stays_lost_of_what_was_found_first_and_is_logged_once(caplog):
    health = DeviceHealth()
    health.ensure_available()
    first, second = health.mark_lost("npu:0: gone"), health.mark_lost("npu:0: what follows")
    assert str(first) == str(second) == str(health.lost)
    with pytest.raises(EngineLost, match="npu:0: gone; "):
        health.ensure_available()
    assert [record.getMessage() for record in caplog.records] == [str(first)]
