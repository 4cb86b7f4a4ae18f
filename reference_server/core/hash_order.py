"""The order of a C++ hash table, in which Triton goes through the inputs of a request.

Triton keeps them in a `std::unordered_map` by name. Which of several faulty inputs an error names,
how a text lists them, and the order in which a model sees them follow from how GNU's libstdc++
arranges such a table: https://gcc.gnu.org/git/?p=gcc.git;a=blob;f=libstdc%2B%2B-v3/include/bits/hashtable.h
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

_MASK: Final = 2**64 - 1
_SEED: Final = 0xC70F6907
_MULTIPLIER: Final = 0xC6A4A7935BD1E995
#: Buckets that a table has as it grows, as many names as it has at most; of more it keeps the last
#: here, which no request comes near.
_BUCKETS: Final = (13, 29, 59, 127, 257, 541, 1109, 2357, 5087, 10273, 20753, 42043)


@lru_cache(1024)
def arranged(names: tuple[str, ...], onto: tuple[str, ...] = ()) -> tuple[str, ...]:
    """All names in the order of a table that lists `onto`, after `names` were put into it, in turn.

    No name is there twice.
    """
    # A bucket that gets its first name goes before all others, and a name before those of its
    # bucket: so a listing, read from its end on, is an order in which its names were put in.
    put_in = [*reversed(onto), *names]
    buckets = _buckets(len(onto))
    while len(put_in) > buckets < _BUCKETS[-1]:
        # It grows: what is there moves to the new buckets in the order that it has.
        put_in[:buckets] = _listed(put_in[:buckets], buckets)
        buckets = _buckets(buckets + 1)
    return tuple(_listed(put_in, buckets))


def _buckets(size: int) -> int:
    return next((count for count in _BUCKETS if count >= size), _BUCKETS[-1])


def _listed(names: Iterable[str], buckets: int) -> list[str]:
    of_bucket: dict[int, list[str]] = {}
    for name in names:
        of_bucket.setdefault(_hash(name) % buckets, []).append(name)
    return [name for group in reversed(of_bucket.values()) for name in reversed(group)]


@lru_cache(1024)
def _hash(name: str) -> int:
    """`std::hash` of a string: MurmurHash64A, read in little endian."""
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
