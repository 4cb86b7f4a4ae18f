"""Parsers for the values of options. Errors have Triton's texts."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from reference_server.core.numerals import leading_integer
from reference_server.gateway.forwarding import HeaderForwarding

_BOOLEANS = {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}


def boolean(text: str) -> bool:
    """Parse one of Triton's words for true and false."""
    value = _BOOLEANS.get(text.lower())
    if value is None:
        raise argparse.ArgumentTypeError(
            f"invalid value for bool option: {text}, expected true or false"
        )
    return value


def stub_model(text: str) -> tuple[str, str]:
    """Parse `NAME=MODULE:FUNCTION`: a model, and the function that answers for it."""
    name, _, function = text.partition("=")
    module, _, attribute = function.partition(":")
    if not (name and module and attribute):
        raise _invalid(text, "NAME=MODULE:FUNCTION, such as detector=stubs:detect")
    return name, function


def number(text: str) -> int:
    """Parse an integer."""
    try:
        return int(text)
    except ValueError:
        raise _invalid(text, "a whole number") from None


def seconds(text: str) -> float:
    """Parse a number of seconds; it may have a fraction."""
    try:
        return float(text)
    except ValueError:
        raise _invalid(text, "a number of seconds") from None


def duration(text: str) -> float:
    """Parse a number of seconds that is not negative."""
    value = seconds(text)
    if not 0 <= value < 2**31:
        raise _invalid(text, "a number of seconds, 0 or more")
    return value


def milliseconds(text: str) -> int:
    """Parse a number of milliseconds; its fraction is dropped."""
    try:
        value = float(text)
    except ValueError:
        value = -1
    if not 0 <= value < 2**63:
        raise _invalid(text, "a number of milliseconds")
    return int(value)


def within(low: int, high: int) -> Callable[[str], int]:
    """Return a parser of integers from `low` to `high`."""

    def parse_number(text: str) -> int:
        if not text.isdecimal() or not low <= int(text) <= high:
            raise _invalid(text, f"{low} to {high}")
        return int(text)

    return parse_number


def leading(low: int, high: int, refusal: str, *, bits: int) -> Callable[[str], int]:
    """Return a parser of the integer at the begin of a text, as in Triton's newer options.

    Args:
        low: the smallest accepted value.
        high: the largest accepted value.
        refusal: the error text for a value outside that range.
        bits: the size of Triton's integer; a larger value has an error text of its own.
    """

    def parse_leading(text: str) -> int:
        value = leading_integer(text)
        if value is None:
            raise argparse.ArgumentTypeError(f"Invalid option value. Got {text}")
        if not -(1 << bits - 1) <= value < 1 << bits - 1:
            raise argparse.ArgumentTypeError(f"Provided option value is out of bound. Got {text}")
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(refusal)
        return value

    return parse_leading


def _invalid(text: str, expected: str) -> argparse.ArgumentTypeError:
    return argparse.ArgumentTypeError(f"Invalid option value. Got {text}, expected {expected}")


def pattern(text: str) -> str:
    """Check a regular expression for header names."""
    try:
        HeaderForwarding(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def switched_off(text: str) -> bool:
    """Accept only false: the feature is missing."""
    if boolean(text):
        raise argparse.ArgumentTypeError("not served by the reference server, expected false")
    return False
