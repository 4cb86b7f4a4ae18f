"""Behaviour of C and C++ that Triton's clients see: `strtol`, and the order of a hash table.

Triton stores inputs in a `std::unordered_map` by name. The order of this table in GNU's libstdc++
decides which of several invalid inputs an error names. Error texts list the inputs, and models
receive them, in this order:
https://gcc.gnu.org/git/?p=gcc.git;a=blob;f=libstdc%2B%2B-v3/include/bits/hashtable.h
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

_MASK: Final = 2**64 - 1
_SEED: Final = 0xC70F6907
_MULTIPLIER: Final = 0xC6A4A7935BD1E995
#: The bucket counts of a growing table. A table has at most as many names as buckets. No request
#: has more inputs than the last number.
_BUCKETS: Final = (13, 29, 59, 127, 257, 541, 1109, 2357, 5087, 10273, 20753, 42043)


@lru_cache(1024)
def arranged(names: tuple[str, ...], onto: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the order of a table after names were inserted into it.

    Args:
        names: The names in the order of their insertion.
        onto: The names that the table had before, in its order. No name may occur twice.
    """
    # A name that is the first of its bucket is placed at the start of the table, any other name at
    # the start of its bucket. So inserting a table's names in reverse reproduces its order.
    inserted = [*reversed(onto), *names]
    buckets = _buckets(len(onto))
    while len(inserted) > buckets < _BUCKETS[-1]:
        # The table grows: its names are inserted into the new buckets in their current order.
        inserted[:buckets] = _in_table_order(inserted[:buckets], buckets)
        buckets = _buckets(buckets + 1)
    return tuple(_in_table_order(inserted, buckets))


def _buckets(size: int) -> int:
    return next((count for count in _BUCKETS if count >= size), _BUCKETS[-1])


def _in_table_order(names: Iterable[str], buckets: int) -> list[str]:
    of_bucket: dict[int, list[str]] = {}
    for name in names:
        of_bucket.setdefault(_hash(name) % buckets, []).append(name)
    return [name for group in reversed(of_bucket.values()) for name in reversed(group)]


@lru_cache(1024)
def _hash(name: str) -> int:
    """Return `std::hash` of a string: MurmurHash64A on little-endian words."""
    data = name.encode("utf-8", "surrogateescape")
    whole = len(data) & ~7
    value = _SEED ^ len(data) * _MULTIPLIER & _MASK
    for place in range(0, whole, 8):
        word = int.from_bytes(data[place : place + 8], "little")
        value = (value ^ _shifted(word * _MULTIPLIER & _MASK) * _MULTIPLIER) * _MULTIPLIER & _MASK
    if rest := data[whole:]:
        value = (value ^ int.from_bytes(rest, "little")) * _MULTIPLIER & _MASK
    return _shifted(_shifted(value) * _MULTIPLIER & _MASK)


def _shifted(value: int) -> int:
    return value ^ value >> 47


#: 20 digits exceed any 64-bit number, and Python refuses to parse thousands of digits.
_LEADING_INTEGER = re.compile(r"\s*([+-]?)0*(\d{1,20})", re.ASCII)


def leading_integer(text: str) -> int | None:
    """Return the integer at the start of `text`; None if `text` does not start with one.

    Only the first 20 digits are used. A number with more is out of range in any case.
    """
    found = _LEADING_INTEGER.match(text)
    return None if found is None else int(found[1] + found[2])
