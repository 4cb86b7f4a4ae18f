"""Rules of configurations: a load reports the first fault, `reference-server check` all faults."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Generic, ParamSpec

from reference_server.core.errors import FieldPath, ServerError

Faults = Iterator[ServerError]
_P = ParamSpec("_P")


def under(path: FieldPath, faults: Faults) -> Faults:
    """Yield faults of a part of the configuration, with `path` before their own paths."""
    for fault in faults:
        fault.path = (*path, *fault.path)
        yield fault


class rule(Generic[_P]):
    """A decorator of generators of faults.

    Calling the rule raises its first fault. `rule.faults(...)` yields all faults, in the order of
    Triton's checks.
    """

    def __init__(self, faults: Callable[_P, Faults]) -> None:
        self.faults = faults
        functools.update_wrapper(self, faults)

    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> None:
        """Raise ServerError if there is a fault."""
        for fault in self.faults(*args, **kwargs):
            raise fault
