"""What a process that lies says: messages that are whole, so that each is judged at once."""

import random

from campaign.neighbours import _lie


def frames(said):
    while said:
        length = int.from_bytes(said[:4], "little")
        assert len(said) >= 4 + length, "half a message is waited for"
        yield said[4 : 4 + length]
        said = said[4 + length :]


def test_no_lie_is_left_half_said():
    dice = random.Random(1)
    said = [list(frames(_lie(dice))) for _ in range(500)]
    assert all(said)
    assert len({kind for one in said for kind in one}) > 100
