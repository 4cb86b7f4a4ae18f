"""The command line's settings of backends, in Triton's spelling."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

PYTHON = "python"
#: What Triton lets be set for all backends; of these, those of Python do without.
OF_ALL = frozenset({"default-max-batch-size"})


def setting(text: str) -> tuple[str, str, str]:
    """A backend, one of its settings and the value, out of `<backend name>,<setting>=<value>`.

    Without a backend's name it is a setting of all: `<setting>=<value>`.
    """
    if text.startswith(","):
        raise argparse.ArgumentTypeError(
            "No backend specified. --backend-config option format is <backend name>,"
            f"<setting>=<value> or <setting>=<value>. Got {text}"
        )
    backend, comma, rest = text.partition(",")
    name, _, value = (rest if comma else text).partition("=")
    if not name or not value:
        raise argparse.ArgumentTypeError(
            f"--backend-config option format is '<backend name>,<setting>=<value>'. Got {text}"
        )
    return (backend if comma else ""), name, value


def of_python(settings: Sequence[tuple[str, str, str]]) -> Mapping[str, str]:
    """The settings of the Python backend; the last of several values counts."""
    return {name: value for backend, name, value in settings if backend == PYTHON}
