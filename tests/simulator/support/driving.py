"""Helpers for tests of the simulator."""

import mmap
from threading import Event

import numpy as np

from ascend_simulator import current
from ascend_simulator.codes import Refused
from ascend_simulator.streams.tasks import Task

H2H, H2D, D2H, D2D = range(4)
MIB = 1024 * 1024


def ok(answer):
    """Return the values before a return code of 0."""
    if isinstance(answer, int):
        assert answer == 0
        return None
    *values, ret = answer
    assert ret == 0, answer
    return values[0] if len(values) == 1 else tuple(values)


class Blocked:
    """A stream that is blocked until `release`."""

    def __init__(self, stream=0):
        self._gate = Event()
        self.entered = Event()
        current().stream(stream, "test").submit(Task(self._wait, (), (), "blocked"))

    def _wait(self):
        self.entered.set()
        assert self._gate.wait(30)

    def release(self):
        self._gate.set()


def fail(stream, code, text="a test wants it"):
    """Submit a task to the stream that fails with `code`."""

    def run():
        raise Refused(code, text)

    current().stream(stream, "test").submit(Task(run, (), (), "fails"))


_PAGES = []


def pages(count=1):
    """Return `count` pages of 4 KiB of host memory, aligned: [count * 4096] uint8.

    The memory is never freed, so that a copy still queued at the end of a test finds it.
    """
    _PAGES.append(np.frombuffer(mmap.mmap(-1, count * mmap.PAGESIZE), np.uint8))
    return _PAGES[-1]


def content(ptr, nbytes):
    """Return the bytes at any address."""
    return current().memory.resolve(ptr, nbytes, want="any", write=False).tobytes()


def fill(ptr, given):
    """Write bytes to any address, without checking the order of uses."""
    view = current().memory.resolve(ptr, len(given), want="any", write=True)
    view[:] = np.frombuffer(given, np.uint8)
