"""Traffic is queued at once and parsed later, in order and with its arrival times."""

import itertools

import pytest

from triton_replay.recording import proxy
from triton_replay.recording.proxy import Reading


class Seen(list):
    """A tap that stores its calls with the time."""

    def __init__(self, clock):
        super().__init__()
        self.clock = clock

    def sent(self, data):
        self.append(("sent", data, self.clock()))

    def answered(self, data):
        self.append(("answered", data, self.clock()))

    def closed(self, by):
        self.append(("closed", by, self.clock()))


@pytest.fixture
def counted():
    return []


@pytest.fixture
def later(counted):
    return Reading(itertools.count(7).__next__, counted.append)


def test_a_tap_reads_later_in_order_and_with_the_original_times(later):
    tap = Seen(later.clock)
    front = later.beside(tap)
    front.sent(b"a")
    front.answered(b"b")
    front.closed("client")
    assert tap == []
    later.read_noted()
    assert tap == [("sent", b"a", 7), ("answered", b"b", 8), ("closed", "client", 9)]


def test_close_waits_for_the_reading_thread(later):
    tap = Seen(later.clock)
    front = later.beside(tap)
    later.start()
    for number in range(1000):
        front.sent(number)
    later.close()
    assert [data for _, data, _ in tap] == list(range(1000))
    assert [at for _, _, at in tap] == list(range(7, 1007))


def test_a_full_queue_is_read_at_once(later, monkeypatch):
    monkeypatch.setattr(proxy, "MAX_NOTED", 2)
    tap = Seen(later.clock)
    front = later.beside(tap)
    for data in (b"a", b"b", b"c"):
        front.sent(data)
    assert len(tap) == 3


def test_a_tap_that_raises_is_counted_and_others_go_on(later, counted):
    tap = Seen(later.clock)
    front = later.beside(tap)
    later.note(int, "no number")
    front.sent(b"a")
    later.read_noted()
    assert len(tap) == 1
    (reported,) = counted
    assert reported.startswith("pieces that could not be read: ValueError(")
