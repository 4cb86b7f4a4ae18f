"""What long requests hold together: counted from their first byte until they are freed."""

import threading

import numpy as np
import pytest

from reference_server.core.errors import Code, ServerError
from reference_server.core.intake import Intake, half_of_memory

LONG = 100_000


def test_what_grows_is_counted_until_nobody_sees_it():
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


def test_what_is_held_is_not_copied_and_can_be_written_if_it_could():
    charge = Intake().charge()
    data = np.zeros(4, np.uint8)
    charge.hold(data)[0] = 7
    assert data[0] == 7
    assert charge.hold(b"abc").readonly


def test_beyond_the_bound_is_no_room_until_some_is_freed():
    intake = Intake(2 * LONG)
    first = intake.keep(memoryview(bytes(LONG)))
    second = intake.keep(memoryview(bytes(LONG)))
    with pytest.raises(ServerError, match="100000 bytes finds no room") as caught:
        intake.keep(memoryview(bytes(LONG)))
    assert caught.value.code is Code.UNAVAILABLE
    assert not intake.charge().grow(1)
    assert intake.held == 2 * LONG
    del first
    assert intake.keep(memoryview(bytes(LONG))).nbytes == LONG
    assert intake.held == LONG
    assert second.nbytes == LONG


def test_what_is_short_is_not_counted():
    intake = Intake(1)
    kept = intake.keep(memoryview(bytes(65_536)))
    assert (kept.nbytes, intake.held) == (65_536, 0)


def test_without_a_bound_there_is_always_room():
    assert Intake(0).charge().grow(2**40)


def test_half_of_the_memory_is_some():
    assert half_of_memory() >= 2**24
    assert half_of_memory() % 2**20 == 0
