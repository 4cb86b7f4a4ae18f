"""Reads the number that a text begins with, as C's `strtol` does."""

from __future__ import annotations

import re

#: Twenty digits are more than any number of 64 bits; Python refuses to read thousands.
_LEADING_INTEGER = re.compile(r"\s*([+-]?)0*(\d{1,20})", re.ASCII)


def leading_integer(text: str) -> int | None:
    """The integer that `text` begins with, whatever follows it; None if there is none.

    Of more than twenty digits the first twenty count: too many in any case.
    """
    found = _LEADING_INTEGER.match(text)
    return None if found is None else int(found[1] + found[2])
