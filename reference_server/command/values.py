"""Readers of the values of options: a text in, a value out, or Triton's reason why it is none."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from reference_server.core.numerals import leading_integer
from reference_server.gateway.forwarding import HeaderForwarding

_BOOLEANS = {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}


def boolean(text: str) -> bool:
    """One of Triton's words for true and false."""
    value = _BOOLEANS.get(text.lower())
    if value is None:
        raise argparse.ArgumentTypeError(
            f"invalid value for bool option: {text}, expected true or false"
        )
    return value


def stub_model(text: str) -> tuple[str, str]:
    """A model's name and the function that stands in for it, out of `NAME=MODULE:FUNCTION`."""
    name, _, function = text.partition("=")
    module, _, attribute = function.partition(":")
    if not (name and module and attribute):
        raise _invalid(text, "NAME=MODULE:FUNCTION, such as detector=stubs:detect")
    return name, function


def number(text: str) -> int:
    """Any whole number."""
    try:
        return int(text)
    except ValueError:
        raise _invalid(text, "a whole number") from None


def seconds(text: str) -> float:
    """A number of seconds, whole or not."""
    try:
        return float(text)
    except ValueError:
        raise _invalid(text, "a number of seconds") from None


def duration(text: str) -> float:
    """A number of seconds that is not negative."""
    value = seconds(text)
    if not 0 <= value < 2**31:
        raise _invalid(text, "a number of seconds, 0 or more")
    return value


def milliseconds(text: str) -> int:
    """A number of milliseconds, without its fraction."""
    try:
        value = float(text)
    except ValueError:
        value = -1
    if not 0 <= value < 2**63:
        raise _invalid(text, "a number of milliseconds")
    return int(value)


def within(low: int, high: int) -> Callable[[str], int]:
    """What reads whole numbers from `low` to `high`."""

    def parse_number(text: str) -> int:
        if not text.isdecimal() or not low <= int(text) <= high:
            raise _invalid(text, f"{low} to {high}")
        return int(text)

    return parse_number


def leading(low: int, high: int, refusal: str, *, bits: int) -> Callable[[str], int]:
    """What reads the number that a text begins with, as Triton reads those of its newer options.

    `refusal` is said of numbers of so many bits that are not from `low` to `high`.
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
    """A regular expression that header names are matched with."""
    try:
        HeaderForwarding(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def switched_off(text: str) -> bool:
    """False, for a switch of something that is not here."""
    if boolean(text):
        raise argparse.ArgumentTypeError("not served by the reference server, expected false")
    return False
