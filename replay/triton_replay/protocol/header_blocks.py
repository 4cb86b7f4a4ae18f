"""Blocks of headers of HTTP/2, each decoded once while the table that it refers to is the same."""

from __future__ import annotations

from typing import Final

from hpack import Decoder

from triton_replay.protocol.http_bodies import Headers

_MAX_BLOCK: Final = 2**20
_ANY_SIZE: Final = 2**24
_KEPT: Final = 64
"""Blocks at most."""
_LONGEST: Final = 512
"""Bytes of a block that is kept."""


class HeaderBlocks:
    """Decodes the blocks of one direction of a connection, in their order."""

    def __init__(self) -> None:
        self._decoder = Decoder(_MAX_BLOCK)
        # What the other side allows is between the two; a table that is too large harms nobody.
        self._decoder.max_allowed_table_size = _ANY_SIZE
        self._known: dict[bytes, Headers] = {}

    def decode(self, block: bytes) -> Headers:
        """The headers; the same object for the same block. Raises hpack.HPACKError."""
        known = self._known.get(block)
        if known is not None:
            return known
        pairs = self._decoder.decode(block, raw=True)
        headers = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in pairs)
        if _changes_the_table(block):
            self._known.clear()
        elif len(block) <= _LONGEST and len(self._known) < _KEPT:
            self._known[block] = headers
        return headers


def _changes_the_table(block: bytes) -> bool:
    """Whether a good block adds to the table of headers or resizes it (RFC 7541, section 6)."""
    at = 0
    while at < len(block):
        first = block[at]
        if first & 0x80:  # indexed
            _, at = _number(block, at, 7)
        elif first & 0x60:  # a literal that is added, or a new size
            return True
        else:
            index, at = _number(block, at, 4)
            for _ in range(1 if index else 2):
                length, at = _number(block, at, 7)
                at += length
    return False


def _number(block: bytes, at: int, bits: int) -> tuple[int, int]:
    """A number in the low bits of a byte and maybe some after it, and where it ends."""
    mask = (1 << bits) - 1
    value = block[at] & mask
    at += 1
    if value < mask:
        return value, at
    shift = 0
    while True:
        byte = block[at]
        value += (byte & 0x7F) << shift
        at += 1
        shift += 7
        if not byte & 0x80:
            return value, at
