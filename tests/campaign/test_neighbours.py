"""The messages of a hostile process are complete, so that each is checked at once."""

import random
import struct

from campaign.neighbours import _lie


def frames(said):
    while said:
        text, data = struct.unpack_from("<Ii", said)
        end = 8 + text + max(0, data)
        assert len(said) >= end, "half a message is waited for"
        yield said[8:end]
        said = said[end:]


def test_hostile_messages_are_complete():
    dice = random.Random(1)
    said = [list(frames(_lie(dice)[1:])) for _ in range(500)]
    assert all(said)
    assert len({kind for one in said for kind in one}) > 100
