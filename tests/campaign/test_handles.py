"""Forged handles: all four types occur, and none is a valid handle."""

import random

from benchmarks.attack.handles import forged


def test_a_forged_handle_is_never_valid():
    dice = random.Random(1)
    own = [[7, place, dice.getrandbits(64), dice.getrandbits(64)] for place in range(3)]
    stale = [[0] * 4, [7, 1, 2, 3]]
    made = [forged(dice, own, stale) for _ in range(500)]
    assert all(len(each) == 4 and each not in own for each in made)
    assert all(0 <= word < 2**64 for each in made for word in each)
    keys = {tuple(each[2:]): tuple(each[:2]) for each in own}
    assert [7, 1, 2, 3] in made  # read before
    assert any(keys.get(tuple(each[2:])) not in (None, tuple(each[:2])) for each in made)  # crossed
    assert len({tuple(each) for each in made}) > 100
    assert forged(dice, [], stale)
