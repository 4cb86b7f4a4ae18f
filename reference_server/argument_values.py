"""The values of command line options: texts to what they mean, or a refusal in Triton's words."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from reference_server.frontends.forwarding import HeaderForwarding

_BOOLEANS = {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}


def boolean(text: str) -> bool:
    """One of Triton's words for true and false."""
    value = _BOOLEANS.get(text.lower())
    if value is None:
        raise argparse.ArgumentTypeError(
            f"invalid value for bool option: {text}, expected true or false"
        )
    return value


def number(text: str) -> int:
    """Any whole number."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"Invalid option value. Got {text}, expected a whole number"
        ) from None


def seconds(text: str) -> float:
    """A number of seconds, whole or not."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"Invalid option value. Got {text}, expected a number of seconds"
        ) from None


def milliseconds(text: str) -> int:
    """A number of milliseconds, without its fraction."""
    try:
        value = float(text)
    except ValueError:
        value = -1
    if not 0 <= value < 2**63:
        raise argparse.ArgumentTypeError(
            f"Invalid option value. Got {text}, expected a number of milliseconds"
        )
    return int(value)


def within(low: int, high: int) -> Callable[[str], int]:
    """A parser of whole numbers from `low` to `high`."""

    def parse_number(text: str) -> int:
        if not text.isdecimal() or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(
                f"Invalid option value. Got {text}, expected {low} to {high}"
            )
        return int(text)

    return parse_number


def pattern(text: str) -> str:
    """A regular expression that header names are matched with."""
    try:
        HeaderForwarding(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def switched_off(text: str) -> bool:
    """A switch of something that is not here: it may only be off."""
    if boolean(text):
        raise argparse.ArgumentTypeError("not served by the reference server, expected false")
    return False
