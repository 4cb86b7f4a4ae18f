"""A hostile model process sends complete frames only."""

import random
import struct

from benchmarks.attack.neighbours import _lie


def frames(sent):
    while sent:
        text, data = struct.unpack_from("<Ii", sent)
        end = 8 + text + max(0, data)
        assert len(sent) >= end, "incomplete frame"
        yield sent[8:end]
        sent = sent[end:]


def test_every_frame_is_complete():
    dice = random.Random(1)
    packets = [list(frames(_lie(dice)[1:])) for _ in range(500)]
    assert all(packets)
    assert len({one for packet in packets for one in packet}) > 100
