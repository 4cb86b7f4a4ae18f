"""The memory budget of large requests."""

import threading

import numpy as np
import pytest

from reference_server.core.backlog import Intake, half_of_memory
from reference_server.core.errors import Code, ServerError

LONG = 100_000


def test_a_request_is_charged_until_its_last_view_is_freed():
    intake = Intake()
    charge = intake.charge()
    assert charge.grow(600)
    assert charge.grow(400)
    view = charge.hold(np.zeros(1000, np.uint8))
    del charge
    assert intake.held == 1000
    part = view[10:20]
    array = np.ndarray((10,), np.uint8, part)
    del view, part
    assert intake.held == 1000
    thread = threading.Thread(target=lambda held: held.clear(), args=([array],))
    del array
    thread.start()
    thread.join()
    del thread
    assert intake.held == 0


def test_a_held_buffer_is_not_copied_and_stays_writable():
    charge = Intake().charge()
    data = np.zeros(4, np.uint8)
    charge.hold(data)[0] = 7
    assert data[0] == 7
    assert charge.hold(b"abc").readonly


def test_a_request_beyond_the_limit_is_refused_until_memory_is_freed():
    intake = Intake(2 * LONG)
    first = intake.keep(memoryview(bytes(LONG)))
    second = intake.keep(memoryview(bytes(LONG)))
    with pytest.raises(ServerError, match="100000 bytes rejected: the limit of") as caught:
        intake.keep(memoryview(bytes(LONG)))
    assert caught.value.code is Code.UNAVAILABLE
    assert not intake.charge().grow(1)
    assert intake.held == 2 * LONG
    del first
    assert intake.keep(memoryview(bytes(LONG))).nbytes == LONG
    assert intake.held == LONG
    assert second.nbytes == LONG


def test_small_requests_are_not_charged():
    intake = Intake(1)
    kept = intake.keep(memoryview(bytes(65_536)))
    assert (kept.nbytes, intake.held) == (65_536, 0)


def test_without_a_limit_nothing_is_refused():
    assert Intake(0).charge().grow(2**40)


def test_half_of_the_memory_is_in_whole_mebibytes():
    assert half_of_memory() >= 2**24
    assert half_of_memory() % 2**20 == 0
