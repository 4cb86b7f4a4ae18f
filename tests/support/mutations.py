"""Random changes of valid bytes."""

from __future__ import annotations

import random


def mutated(data: bytes, dice: random.Random) -> bytes:
    """Change, remove, add or repeat a few bytes, or truncate the data."""
    changed = bytearray(data)
    for _ in range(dice.choice([1, 1, 1, 2, 3])):
        at = dice.randrange(len(changed) + 1)
        match dice.randrange(6):
            case 0 | 1 | 2:
                changed[at : at + 1] = dice.randbytes(1)
            case 3:
                del changed[at : at + 1]
            case 4:
                changed[at:at] = changed[at : at + dice.randrange(12)]
            case 5:
                del changed[at:]
    return bytes(changed)
