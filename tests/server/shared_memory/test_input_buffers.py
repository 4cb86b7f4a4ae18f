"""Buffers for copies of inputs: taken, returned with the last view, reused, freed."""

import gc
import threading

import numpy as np
import pytest

from reference_server.shared_memory.region import InputBuffers

SIZE = 1000


class Clock:
    now_s = 0.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def buffers(clock):
    return InputBuffers(most_idle=3 * SIZE, clock=clock)


def address(view):
    return np.frombuffer(view, np.uint8).ctypes.data


def test_a_buffer_is_reused_after_its_last_view_is_freed(buffers):
    lent = buffers.take(SIZE)
    first = address(lent)
    array = np.frombuffer(lent, np.uint8)[10:].view(np.int16)
    del lent
    assert address(buffers.take(SIZE)) != first
    buffers.release()
    assert array.base is not None
    del array
    again = [buffers.take(SIZE) for _ in range(2)]
    assert first in [address(view) for view in again]


def test_a_kept_view_keeps_its_buffer(buffers):
    kept = np.frombuffer(buffers.take(SIZE), np.uint8)
    kept[:] = 1
    for _ in range(10):
        other = np.frombuffer(buffers.take(SIZE), np.uint8)
        other[:] = 2
        del other
    assert (kept == 1).all()


def test_idle_buffers_are_limited(buffers):
    lent = [buffers.take(SIZE) for _ in range(9)]
    assert buffers.idle_bytes == 0
    lent.clear()
    assert buffers.idle_bytes == 3 * SIZE
    buffers.take(4 * SIZE)
    assert buffers.idle_bytes == 3 * SIZE


def test_idle_buffers_are_freed_after_some_time(buffers, clock):
    lent = [buffers.take(SIZE) for _ in range(2)]
    lent.pop()
    clock.now_s = 9
    buffers.release()
    assert buffers.idle_bytes == SIZE
    lent.pop()
    clock.now_s = 11
    buffers.release()
    assert buffers.idle_bytes == SIZE
    clock.now_s = 20
    buffers.release()
    assert buffers.idle_bytes == 0


def test_freeing_a_view_does_not_wait_for_the_lock(buffers):
    lent = buffers.take(SIZE)
    with buffers._lock:  # as the garbage collector may do
        del lent
    assert buffers.idle_bytes == 0
    assert len(buffers.take(SIZE)) == SIZE


@pytest.mark.brute_force
def test_any_thread_takes_and_returns_buffers(buffers):
    def work(number):
        for _ in range(300):
            array = np.frombuffer(buffers.take(SIZE), np.uint8)
            array[:] = number
            if not (array == number).all():
                wrong.append(number)

    wrong = []
    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.collect()
    assert wrong == []
    assert buffers._loans == {}
    assert buffers.idle_bytes <= 3 * SIZE
