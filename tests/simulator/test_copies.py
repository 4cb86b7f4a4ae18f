"""Copies and fills: the order of checks, and the copied bytes."""

import numpy as np
import pytest
from simulator.support.driving import D2D, D2H, H2D, H2H, MIB, content, fill, ok

import ascend_simulator
from ascend_simulator.copies import fingerprint
from ascend_simulator.resources import BASE

PATTERN = bytes(range(256))


@pytest.fixture
def places(acl):
    """Two device blocks and two pinned ones, 256 bytes each."""
    return [ok(acl.rt.malloc(256, 0)) for _ in range(2)] + [
        ok(acl.rt.malloc_host(256)) for _ in range(2)
    ]


@pytest.mark.parametrize(
    ("source", "target", "kinds"),
    [(2, 3, (H2H, 4)), (2, 0, (H2D, 4, 5)), (0, 2, (D2H, 4)), (0, 1, (D2D, 4))],
)
def test_the_bytes_arrive_in_every_direction(acl, places, source, target, kinds):
    source, target = places[source], places[target]

    def behind(*copy):
        ok(acl.rt.memcpy_async(*copy, 0))
        return acl.rt.synchronize_stream(0)

    for kind in kinds:
        for copy in (acl.rt.memcpy, behind)[: 1 if H2H in kinds else 2]:
            fill(source, PATTERN)
            fill(target, bytes(256))
            ok(copy(target + 64, 128, source, 100, kind))
            assert content(target, 256) == bytes(64) + PATTERN[:100] + bytes(92)


@pytest.mark.parametrize("kind", [H2H, 4])
def test_the_host_copies_its_own_memory_itself(acl, places, kind):
    assert acl.rt.memcpy_async(places[2], 256, places[3], 64, kind, 0) == 207000


def test_invalid_copies_are_refused_before_copying(acl, places):
    device, _, pinned, _ = places
    for copy in (acl.rt.memcpy, lambda *given: acl.rt.memcpy_async(*given, 0)):
        assert copy(device, 63, pinned, 64, H2D) == 107000
        assert copy(device, 64, pinned, 64, 6) == 100000
        assert copy(device, 64, pinned, 64, 7) == 100000
        assert copy(0, 0, 0, 0, 99) == 0  # checked first
        assert copy(device, 64, pinned, 64, -1) == 100000
        assert copy(device, 0, pinned, 0, H2D) == 0
        assert copy(device + MIB, 0, 0x40, 0, H2D) == 0  # nothing is checked
    assert content(device, 256) == b"\x7f" * 256
    assert acl.rt.memset(device, 63, 0, 64) == 107000
    assert acl.rt.memset_async(device, 63, 0, 64, 0) == 107000
    assert acl.rt.memset(device, 0, 0, 0) == 0
    assert acl.rt.memset(0, 0, 0, 0) == 0
    assert acl.rt.memset(device + MIB, 0, 0, 0) == 0


def test_pageable_memory_ends_where_device_memory_begins(acl, places):
    with pytest.raises(ascend_simulator.SimulatorViolation, match="the end of the host's memory"):
        acl.rt.memcpy(places[0], 64, BASE - 32, 64, H2D)


def test_pieces_side_by_side_do_not_overlap(acl, places):
    device = places[0]
    fill(device, PATTERN)
    assert acl.rt.memcpy(device + 64, 64, device, 64, D2D) == 0
    assert acl.rt.memcpy(device + 128, 64, device + 192, 64, D2D) == 0
    assert content(device, 256) == PATTERN[:64] * 2 + PATTERN[192:] * 2


def test_fills_take_the_low_byte(acl, places):
    ok(acl.rt.memset(places[0], 256, 0x1FF, 10))
    ok(acl.rt.memset_async(places[0] + 10, 246, -2, 10, 0))
    ok(acl.rt.synchronize_stream(0))
    assert content(places[0], 30) == b"\xff" * 10 + b"\xfe" * 10 + b"\x7f" * 10


def test_a_pageable_copy_is_done_when_the_call_returns(acl, places):
    array = np.frombuffer(bytearray(PATTERN * 2), np.uint8)
    aligned = array.ctypes.data + -array.ctypes.data % 64
    expected = content(aligned, 256)
    with pytest.warns(ascend_simulator.SimulatorWarning, match="pageable"):
        ok(acl.rt.memcpy_async(places[0], 256, aligned, 256, H2D, 0))
    assert content(places[0], 256) == expected
    with pytest.warns(ascend_simulator.SimulatorWarning, match="pageable"):
        ok(acl.rt.memcpy_async(aligned, 256, places[1], 256, D2H, 0))
    assert content(aligned, 256) == b"\x7f" * 256


def test_copies_take_the_time_that_the_settings_say(started):
    acl = started(copy_gbps=1.0)
    device, pinned = ok(acl.rt.malloc(MIB, 0)), ok(acl.rt.malloc_host(MIB))
    begin, end = ok(acl.rt.create_event()), ok(acl.rt.create_event())
    ok(acl.rt.record_event(begin, 0))
    ok(acl.rt.memcpy_async(device, MIB, pinned, MIB, H2D, 0))
    ok(acl.rt.memcpy_async(pinned, MIB, device, MIB, D2H, 0))
    ok(acl.rt.record_event(end, 0))
    ok(acl.rt.synchronize_event(end))
    assert ok(acl.rt.event_elapsed_time(begin, end)) >= 2 * MIB / 1e9 * 1e3


@pytest.mark.parametrize("nbytes", [1, 255, 16 * 1024, 16 * 1024 + 1, MIB + 3])
def test_fingerprints_cover_the_first_and_last_piece(nbytes):
    bytes_ = np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8)
    before = fingerprint(bytes_)
    assert fingerprint(bytes_.copy()) == before
    last_piece = 0 if nbytes == 1 else min(nbytes - 1, nbytes // 16 * 15)
    for place in {0, last_piece}:
        changed = bytes_.copy()
        changed[place] ^= 1
        assert fingerprint(changed) != before
