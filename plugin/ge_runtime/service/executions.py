"""Executions as bytes: where the tensors of one lie, and how one ended."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeAlias

from ge_runtime.service.protocol import Broken, Kind, framed

MOST_DIMS: Final = 32
"""What NumPy 1 can have."""

NOWHERE: Final = 0xFFFFFFFF
"""The arena of a tensor without bytes, and of an output that the engine is to allocate."""

_RUN: Final = struct.Struct("<Qd")
_COUNTS: Final = struct.Struct("<HH")
_TENSOR: Final = struct.Struct("<HHIQ")
_DONE: Final = struct.Struct("<QddHH")
LAYOUT_AT: Final = _RUN.size
"""Where, in the body of a RUN, begins what is equal in executions of equal sizes and places."""

Spot: TypeAlias = tuple[int, int, tuple[int, ...]]
"""Where a tensor lies: arena, bytes from its start, shape."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the tensors of an execution lie."""

    inputs: tuple[Spot, ...]
    """In the order of the graph's signature, all of them."""
    outputs: tuple[tuple[int, Spot], ...]
    """Those that are wanted: the place in the signature, and the spot."""


@dataclass(frozen=True, slots=True)
class Done:
    """The end of an execution."""

    sequence: int
    waited_s: float
    """For its turn."""
    took_s: float
    allocated: tuple[tuple[int, Spot], ...] = ()
    """Outputs that the engine allocated: they are in the file whose descriptor comes along."""
    fault: Sequence[str] | None = None
    """See `fault_of`; None if all went well."""


def pack_run(sequence: int, within_s: float, layout: bytes) -> bytes:
    """A RUN. within_s: how long it may wait for its turn; layout: see `pack_layout`."""
    return framed(Kind.RUN, _RUN.pack(sequence, within_s) + layout)


def unpack_run(body: bytes) -> tuple[int, float]:
    """Sequence and waiting time of a RUN; from LAYOUT_AT on lies its layout. Raises Broken."""
    try:
        sequence, within_s = _RUN.unpack_from(body)
    except struct.error:
        raise Broken(f"found an execution of {len(body)} bytes, expected more") from None
    if within_s != within_s:
        raise Broken("found no number for the time to wait, expected seconds")
    return sequence, within_s


def pack_layout(inputs: Sequence[Spot], outputs: Sequence[tuple[int, Spot]]) -> bytes:
    """The bytes of a layout."""
    parts = [_COUNTS.pack(len(inputs), len(outputs))]
    for place, (arena, offset, shape) in (*enumerate(inputs), *outputs):
        parts.append(_TENSOR.pack(place, len(shape), arena, offset))
        parts.append(_dims(len(shape)).pack(*shape))
    return b"".join(parts)


def unpack_layout(data: bytes) -> Layout:
    """The opposite. Raises Broken; whether arenas and places exist is not looked at."""
    try:
        given, wanted = _COUNTS.unpack_from(data)
        tensors, end = _unpack_tensors(data, _COUNTS.size, given + wanted)
    except struct.error as error:
        raise Broken(f"found a layout cut short: {error}") from None
    if end != len(data):
        raise Broken(f"found a layout of {len(data)} bytes, expected {end}")
    if [place for place, _ in tensors[:given]] != list(range(given)):
        raise Broken("found inputs out of order, expected the graph's")
    return Layout(tuple(spot for _, spot in tensors[:given]), tuple(tensors[given:]))


def pack_done(done: Done) -> bytes:
    """A DONE."""
    text = b"" if done.fault is None else json.dumps(list(done.fault)).encode()
    head = _DONE.pack(
        done.sequence, done.waited_s, done.took_s, done.fault is not None, len(done.allocated)
    )
    parts = [head]
    for place, (arena, offset, shape) in done.allocated:
        parts.append(_TENSOR.pack(place, len(shape), arena, offset))
        parts.append(_dims(len(shape)).pack(*shape))
    parts.append(text)
    return framed(Kind.DONE, b"".join(parts))


def unpack_done(body: bytes) -> Done:
    """The opposite. Raises Broken."""
    try:
        sequence, waited_s, took_s, failed, count = _DONE.unpack_from(body)
        allocated, end = _unpack_tensors(body, _DONE.size, count)
    except struct.error as error:
        raise Broken(f"found the end of an execution cut short: {error}") from None
    fault = None
    if failed:
        try:
            name, text, cause = json.loads(body[end:])
        except ValueError as error:
            raise Broken(f"found a fault that is none: {error}") from None
        fault = [str(name), str(text), str(cause)]
    return Done(sequence, waited_s, took_s, tuple(allocated), fault)


def _unpack_tensors(data: bytes, at: int, count: int) -> tuple[list[tuple[int, Spot]], int]:
    """So many tensors from there on, and where they end. Raises struct.error or Broken."""
    tensors: list[tuple[int, Spot]] = []
    for _ in range(count):
        place, rank, arena, offset = _TENSOR.unpack_from(data, at)
        if rank > MOST_DIMS:
            raise Broken(f"found a tensor of {rank} dims, expected at most {MOST_DIMS}")
        dims = _dims(rank)
        shape: tuple[int, ...] = dims.unpack_from(data, at + _TENSOR.size)
        if shape and min(shape) < 0:
            raise Broken(f"found shape {list(shape)}, expected sizes of 0 or more")
        tensors.append((place, (arena, offset, shape)))
        at += _TENSOR.size + dims.size
    return tensors, at


@lru_cache(MOST_DIMS + 1)
def _dims(rank: int) -> struct.Struct:
    return struct.Struct(f"<{rank}q")
