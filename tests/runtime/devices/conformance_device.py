"""The conformance suite of device memory: see `ge_runtime.devices`.

A suite to inherit from, with a fixture `device`: one named "dev" of CAPACITY bytes.
"""

import logging
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from ge_runtime.errors import DeviceFault, OutOfMemory

CAPACITY = 1_000_000
LOGGER = "ge_runtime.devices"


class DeviceConformance:
    def test_memory_is_booked_under_its_label_until_it_is_freed(self, device):
        weights, first, second = (
            device.allocate("weights", 600_000),
            device.allocate("slots", 100_000),
            device.allocate("slots", 50_000),
        )
        assert (weights.label, weights.nbytes) == ("weights", 600_000)
        assert device.allocated_bytes == {"weights": 600_000, "slots": 150_000}
        assert (device.used_bytes, device.free_bytes) == (750_000, 250_000)
        first.free()
        assert device.allocated_bytes == {"weights": 600_000, "slots": 50_000}
        weights.free()
        second.free()
        assert device.allocated_bytes == {}
        assert (device.used_bytes, device.free_bytes) == (0, CAPACITY)

    def test_all_live_memory_is_freed_at_once_and_each_buffer_once(self, device):
        first, second = device.allocate("weights", 600_000), device.allocate("slots", 100_000)
        first.free()
        device.free_all()
        device.free_all()
        assert (device.used_bytes, device.allocated_bytes) == (0, {})
        with pytest.raises(DeviceFault, match="use after `free`"):
            _ = second.memory
        device.allocate("all", CAPACITY)

    def test_all_of_the_capacity_can_be_had(self, device):
        device.allocate("all", CAPACITY)
        assert device.free_bytes == 0

    def test_nothing_can_be_allocated_and_freed(self, device):
        nothing, something = device.allocate("x", 0), device.allocate("x", 10)
        assert nothing.nbytes == 0
        something.free()
        assert device.allocated_bytes == {}
        nothing.free()
        assert device.used_bytes == 0

    def test_more_than_is_free_is_refused_by_name_and_changes_nothing(self, device):
        device.allocate("weights", 600_000)
        with pytest.raises(OutOfMemory) as raised:
            device.allocate("workspace", 400_001)
        assert str(raised.value) == (
            "dev: 'workspace': found 400,001 bytes wanted, expected at most 400,000, which are "
            "free of 1,000,000"
        )
        assert device.allocated_bytes == {"weights": 600_000}
        device.allocate("workspace", 400_000)

    def test_negative_sizes_are_refused(self, device):
        with pytest.raises(ValueError, match="'x': found -1 bytes, expected 0 or more"):
            device.allocate("x", -1)

    def test_second_free_is_a_fault_and_counts_once(self, device):
        buffer = device.allocate("x", 10)
        device.allocate("x", 10)
        buffer.free()
        with pytest.raises(DeviceFault, match=r"'x': 10 bytes on dev, freed>: found a second free"):
            buffer.free()
        assert device.allocated_bytes == {"x": 10}

    def test_memory_of_a_freed_buffer_cannot_be_reached(self, device):
        buffer = device.allocate("x", 10)
        assert buffer.memory is buffer.memory
        buffer.free()
        with pytest.raises(DeviceFault, match="'x': 10 bytes on dev, freed>: found a use after"):
            _ = buffer.memory

    def test_allocation_after_freeze_succeeds_is_counted_and_logged_once(self, device, caplog):
        device.allocate("planned", 10)
        device.freeze()
        device.freeze()
        assert (device.frozen, device.allocations_after_freeze) == (True, 0)
        with caplog.at_level(logging.WARNING, LOGGER):
            for nbytes in (1_234, 5_678):
                assert device.allocate("late", nbytes).nbytes == nbytes
        assert device.allocations_after_freeze == 2
        assert caplog.messages == [
            "dev: 'late': 1,234 bytes allocated while serving, where all memory was planned; "
            "more of this label are counted, not logged"
        ]

    def test_allocations_before_freeze_are_no_defects(self, device, caplog):
        device.allocate("planned", 10)
        assert (device.frozen, device.allocations_after_freeze) == (False, 0)
        assert caplog.messages == []

    def test_a_refused_allocation_after_freeze_is_no_allocation(self, device):
        device.freeze()
        with pytest.raises(OutOfMemory):
            device.allocate("late", CAPACITY + 1)
        assert device.allocations_after_freeze == 0

    def test_books_are_right_after_many_threads_at_once(self, device):
        begin = threading.Barrier(4)

        def churn(label):
            begin.wait(30)
            for _ in range(200):
                device.allocate(label, 3).free()
            return device.allocate(label, 7)

        with ThreadPoolExecutor(4) as threads:
            kept = list(threads.map(churn, ["a", "a", "b", "c"]))
        assert device.allocated_bytes == {"a": 14, "b": 7, "c": 7}
        for buffer in kept:
            buffer.free()
        assert device.used_bytes == 0

    def test_repr_has_used_bytes_and_defects(self, device):
        buffer = device.allocate("weights", 600_000)
        name = type(device).__name__
        assert repr(buffer) == "<Buffer 'weights': 600,000 bytes on dev, live>"
        assert repr(device) == f"<{name} dev: 600,000 of 1,000,000 bytes in use>"
        device.freeze()
        device.allocate("late", 1)
        assert repr(device) == (
            f"<{name} dev: 600,001 of 1,000,000 bytes in use, frozen, 1 allocation(s) since>"
        )
