"""Allocation: addresses, charged bytes and refusals."""

import ctypes
import warnings

import numpy as np
import pytest
from simulator.support.driving import H2D, MIB, content, fill, ok, pages

from ascend_simulator import SimulatorViolation, current
from ascend_simulator.memory.blocks import FRESH, charged_bytes
from ascend_simulator.memory.heaps import DEVICE_BASE

POLICIES = {
    "HUGE_FIRST": 0,
    "HUGE_ONLY": 1,
    "NORMAL_ONLY": 2,
    "HUGE_FIRST_P2P": 3,
    "HUGE_ONLY_P2P": 4,
    "NORMAL_ONLY_P2P": 5,
    "HUGE1G_ONLY": 6,
    "HUGE1G_ONLY_P2P": 7,
}
GIB = 1024 * MIB


@pytest.mark.parametrize(
    ("nbytes", "policy", "expected"),
    [
        (1, "NORMAL_ONLY", 4096),
        (4064, "NORMAL_ONLY", 4096),
        (4065, "NORMAL_ONLY", 8192),  # 4096 after rounding to 32, plus 32
        (4096, "NORMAL_ONLY_P2P", 8192),
        (MIB, "HUGE_FIRST", MIB + 4096),
        (MIB + 1, "HUGE_FIRST", 2 * MIB),
        (2 * MIB - 32, "HUGE_FIRST_P2P", 2 * MIB),
        (2 * MIB - 31, "HUGE_FIRST", 4 * MIB),
        (4 * MIB, "NORMAL_ONLY", 4 * MIB + 4096),
        (4 * MIB, "NORMAL_ONLY_P2P", 4 * MIB + 4096),
        (1, "HUGE_ONLY", 2 * MIB),
        (1, "HUGE_ONLY_P2P", 2 * MIB),
        (GIB, "HUGE1G_ONLY", GIB),  # without the additional 32
        (GIB + 1, "HUGE1G_ONLY_P2P", 2 * GIB),
    ],
)
def test_an_allocation_is_charged_its_rounding_and_its_pages(nbytes, policy, expected):
    for bits in (0, 0x0100, 0x1000):
        assert charged_bytes(nbytes, POLICIES[policy] | bits) == expected


def test_only_malloc_align32_avoids_the_32_bytes(acl):
    for malloc, taken in [("malloc", 2), ("malloc_cached", 4), ("malloc_align32", 5)]:
        ok(getattr(acl.rt, malloc)(4096, 2))
        assert current().memory.used(0) == taken * 4096


@pytest.mark.parametrize(("nbytes", "expected"), [(MIB + 1, MIB + 4096), (2 * MIB, 4 * MIB)])
def test_an_unknown_policy_takes_huge_pages_from_2_mib_on(nbytes, expected):
    assert charged_bytes(nbytes, 99) == expected


def test_get_mem_info_shows_what_allocations_take(started):
    acl = started(hbm_mib=16)
    for attr in (1, 4, 5, 8, 9, 10, 11):
        assert acl.rt.get_mem_info(attr) == (16 * MIB, 16 * MIB, 0)
    for attr in (0, 2, 3, 6, 7):
        assert acl.rt.get_mem_info(attr) == (0, 0, 0)  # a card without DDR
    ptr = ok(acl.rt.malloc(3 * MIB, 0))
    assert acl.rt.get_mem_info(1) == (12 * MIB, 16 * MIB, 0)
    assert acl.rt.malloc(12 * MIB, 0) == (0, 207001)
    assert "12,582,912" in acl.get_recent_err_msg()
    ok(acl.rt.free(ptr))
    ok(acl.rt.malloc(12 * MIB, 0))


def test_the_last_page_can_be_had(started):
    acl = started(hbm_mib=4)
    assert acl.rt.malloc(4 * MIB - 31, 2) == (0, 207001)
    ok(acl.rt.malloc(4 * MIB - 32, 2))
    assert acl.rt.get_mem_info(1) == (0, 4 * MIB, 0)


def test_devices_have_memory_of_their_own(machine):
    acl = machine(devices=2, hbm_mib=4)
    ok(acl.init())
    for device in range(2):
        ok(acl.rt.set_device(device))
        ok(acl.rt.malloc(3 * MIB, 2))
        assert acl.rt.malloc(MIB, 2) == (0, 207001)


@pytest.mark.parametrize("malloc", ["malloc", "malloc_align32", "malloc_cached"])
def test_device_addresses_are_multiples_of_64_and_nothing_larger(acl, malloc):
    pointers = [ok(getattr(acl.rt, malloc)(size, 0)) for size in (1, 64, 4096, MIB)]
    for ptr in pointers:
        assert (ptr % 64, ptr % 128) == (0, 64)
        assert ptr > DEVICE_BASE
        ok(acl.rt.free(ptr))


def test_pinned_memory_is_the_hosts_and_aligned(acl):
    ptr = ok(acl.rt.malloc_host(1000))
    assert ptr % 64 == 0
    ctypes.memset(ptr, 5, 1000)
    assert content(ptr, 1000) == bytes([5]) * 1000
    ok(acl.rt.free_host(ptr))


def test_freed_pinned_memory_is_poisoned_and_not_given_again_at_once(acl):
    ptr = ok(acl.rt.malloc_host(4096))
    ctypes.memset(ptr, 0, 4096)
    ok(acl.rt.free_host(ptr))
    assert ctypes.string_at(ptr, 4096) == bytes([FRESH]) * 4096
    assert ptr not in [ok(acl.rt.malloc_host(4096)) for _ in range(20)]


@pytest.mark.brute_force
@pytest.mark.parametrize(("count", "nbytes"), [(2, 32 * MIB), (1024, 64)])
def test_the_64_mib_and_1024_blocks_of_pinned_memory_freed_last_are_watched(acl, count, nbytes):
    ptr, *rest = [ok(acl.rt.malloc_host(nbytes)) for _ in range(count)]
    for each in (ptr, *rest):
        ok(acl.rt.free_host(each))
    with pytest.raises(SimulatorViolation, match="use-after-free"):
        current().memory.locate(ptr, 64, want="host")


@pytest.mark.brute_force
def test_freed_pinned_memory_is_not_kept_beyond_a_limit(acl):
    for _ in range(3):
        ok(acl.rt.free_host(ok(acl.rt.malloc_host(30 * MIB))))
    ptr = ok(acl.rt.malloc_host(65 * MIB))
    ok(acl.rt.free_host(ptr))
    space = current().memory
    assert space.locate(ptr, 64, want="host") is None  # pageable again


def test_null_is_refused(acl):
    ptr = ok(acl.rt.malloc(64, 0))
    assert acl.rt.free(0) == 100000
    assert acl.rt.free_host(0) == 100000
    assert acl.rt.host_unregister(0) == 100000
    assert acl.rt.host_register(0, 64, 0) == (0, 100000)
    assert acl.rt.host_register(1 << 20, 0, 0) == (0, 100000)
    assert acl.rt.memset(0, 64, 0, 64) == 100000
    assert acl.rt.memset_async(0, 64, 0, 64, 0) == 100000
    assert acl.rt.memcpy(0, 64, ptr, 64, 4) == 100000
    assert acl.rt.memcpy(ptr, 64, 0, 64, 4) == 100000
    assert acl.rt.memcpy_async(0, 64, ptr, 64, 4, 0) == 100000
    assert acl.rt.mem_flush(0, 64) == 100000


MAPPED, PINNED = 0x2, 0x10000000


def copies_behind(acl, host):
    """Return whether a copy of registered memory is queued, rather than waited for."""
    device = ok(acl.rt.malloc(64, 0))
    with warnings.catch_warnings(record=True) as cautions:
        warnings.simplefilter("always")
        ok(acl.rt.memcpy_async(device, 64, host, 64, H2D, 0))
    ok(acl.rt.synchronize_stream(0))
    assert content(device, 64) == content(host, 64)
    return not any("memcpy.pageable-async" in str(each.message) for each in cautions)


@pytest.mark.parametrize(
    ("flag", "pins", "maps"),
    [(PINNED, True, False), (MAPPED, False, True), (PINNED | MAPPED, True, True)],
)
def test_registered_memory_is_pinned_or_mapped_as_its_flag_says(acl, flag, pins, maps):
    array = pages()
    host = array.ctypes.data
    ok(acl.rt.host_register_v2(host, 4096, flag))
    block = current().memory.find(host)
    assert (block.alias is not None) == maps
    assert ok(acl.rt.pointer_get_attributes(host))["location"]["type"] == (0 if pins else 2)
    assert copies_behind(acl, host) == pins
    ok(acl.rt.host_unregister(host))
    assert current().memory.find(host) is None


def test_host_register_maps_and_does_not_pin(acl):
    array = pages()
    host = array.ctypes.data
    alias = ok(acl.rt.host_register(host, 4096, 0))
    assert alias > DEVICE_BASE
    assert content(alias, 4096) == content(host, 4096)
    assert not copies_behind(acl, host)
    ok(acl.rt.host_unregister(host))
    assert current().memory.find(alias) is None
    assert acl.rt.host_register(host, 4096, 1) == (0, 207000)


@pytest.mark.parametrize("soc", ["Ascend310P3", "Ascend310B1"])
def test_ddr_chips_report_ddr_and_refuse_registration(started, soc):
    acl = started(soc=soc, hbm_mib=16)
    for attr in (0, 2, 3, 6, 7):
        assert acl.rt.get_mem_info(attr) == (16 * MIB, 16 * MIB, 0)
    assert acl.rt.get_mem_info(1) == (0, 0, 0)
    array = pages()
    assert acl.rt.host_register(array.ctypes.data, 4096, 0) == (0, 207000)
    assert acl.rt.host_register_v2(array.ctypes.data, 4096, PINNED) == 207000


@pytest.mark.parametrize("flag", [0, 1, 0x4, MAPPED | 0x8])
def test_undocumented_register_flags_are_refused(acl, flag):
    array = pages()
    assert acl.rt.host_register_v2(array.ctypes.data, 4096, flag) == 107000
    assert current().memory.find(array.ctypes.data) is None


def test_neighbours_are_registered_side_by_side(acl):
    array = pages(3)
    middle = array.ctypes.data + 4096
    for ptr in (middle, middle - 4096, middle + 4096):
        ok(acl.rt.host_register(ptr, 4096, 0))


@pytest.mark.parametrize("beside", [-1, 64])
def test_writes_beside_a_block_are_detected(acl, beside):
    ptr = ok(acl.rt.malloc(64, 0))
    with pytest.raises(SimulatorViolation, match=r"memory\.unknown"):
        current().memory.resolve(ptr + beside, 1, want="any", write=False)


def test_where_an_address_lies(acl):
    device, pinned = ok(acl.rt.malloc(64, 0)), ok(acl.rt.malloc_host(64))
    array = np.zeros(64, np.uint8)
    locations = [
        ok(acl.rt.pointer_get_attributes(ptr))["location"]
        for ptr in (device + 63, pinned, array.ctypes.data)
    ]
    assert locations == [{"id": 0, "type": 1}, {"id": 0, "type": 0}, {"id": 0, "type": 2}]
    assert set(ok(acl.rt.pointer_get_attributes(device))) == {"location", "page_size", "rsv"}


def test_a_block_may_be_held_more_than_once(acl):
    memory, ptr = current().memory, ok(acl.rt.malloc(64, 0))
    block = memory.hold(ptr, 64, "model 0")
    assert memory.hold(ptr + 32, 32, "model 0") is block
    memory.release(block, "model 0")
    assert dict(block.holders) == {"model 0": 1}
    memory.release(block, "model 0")
    assert not block.holders
    ok(acl.rt.free(ptr))


def test_views_are_of_the_memory_itself_and_read_only_unless_asked(acl):
    memory, ptr = current().memory, ok(acl.rt.malloc(64, 0))
    fill(ptr + 8, b"abc")
    view = memory.resolve(ptr + 8, 3, want="device", write=False)
    assert view.tobytes() == b"abc"
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1
    memory.resolve(ptr, 64, want="device", write=True)[8] = ord("x")
    assert view.tobytes() == b"xbc"


def test_no_bytes_of_a_place_are_a_view_too(acl):
    ptr = ok(acl.rt.malloc(64, 0))
    assert current().memory.resolve(ptr, 0, want="any", write=True).nbytes == 0


def test_a_simulated_card_larger_than_the_host(started):
    acl = started(hbm_mib=1 << 40)
    with pytest.raises(MemoryError):
        acl.rt.malloc(1 << 55, 0)
    assert current().memory.used(0) == 0


def test_flush_and_invalidate_accept_device_memory(acl):
    ptr = ok(acl.rt.malloc_cached(64, 0))
    assert acl.rt.mem_flush(ptr, 64) == 0
    assert acl.rt.mem_invalidate(ptr, 64) == 0
