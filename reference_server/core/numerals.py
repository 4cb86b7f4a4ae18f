"""Parses the number at the start of a text, as C's `strtol` does."""

from __future__ import annotations

import re

#: 20 digits exceed any 64-bit number, and Python refuses to parse thousands of digits.
_LEADING_INTEGER = re.compile(r"\s*([+-]?)0*(\d{1,20})", re.ASCII)


def leading_integer(text: str) -> int | None:
    """Return the integer at the start of `text`; None if `text` does not start with one.

    Only the first 20 digits are used. A number with more is out of range in any case.
    """
    found = _LEADING_INTEGER.match(text)
    return None if found is None else int(found[1] + found[2])
