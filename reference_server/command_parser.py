"""How the command line is read, and how it is told what is wrong with it."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NoReturn

_WITHOUT_VALUE = re.compile(r"argument (\S+): expected one argument")


def nearest(name: str, known: Iterable[str], shown: Mapping[str, str] | None = None) -> str:
    """`; did you mean 'X'?` with the one of `known` that looks most like `name`; empty if none.

    `shown` says what stands for it in that sentence.
    """
    alike = difflib.get_close_matches(name, list(known), n=1)
    if not alike:
        return ""
    return f"; did you mean '{alike[0] if shown is None else shown[alike[0]]}'?"


class CommandParser(argparse.ArgumentParser):
    """Ends a bad start as tritonserver does, with code 1, but tells no more than what is wrong."""

    def read(self, arguments: Sequence[str]) -> argparse.Namespace:
        """The values of all options. Exits if there is something that is none."""
        given, strange = self.parse_known_args(arguments)
        if strange:
            self.error(self._described(strange[0]))
        return given

    def error(self, message: str) -> NoReturn:
        """Exit with the reason, and where all options are told."""
        text = _WITHOUT_VALUE.sub(r"option '\1' requires an argument", message)
        text = text.removeprefix("argument ").removeprefix("Error: ")
        self.exit(1, f"Error: {text}\nsee --help for all options\n")

    def _described(self, argument: str) -> str:
        if not argument.startswith("-"):
            return f"Unexpected argument: {argument}"
        name = argument.partition("=")[0]
        return f"unrecognized option '{argument}'{nearest(name, self._option_string_actions)}"
