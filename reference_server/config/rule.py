"""A rule of configurations: a load is refused for its first fault, a check tells all of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Generic, ParamSpec

from reference_server.core.errors import ServerError

Faults = Iterator[ServerError]
_P = ParamSpec("_P")


class rule(Generic[_P]):
    """Makes of a generator of faults what raises the first one; `faults` gives them all.

    They come in the order in which Triton looks, which stops at the first.
    """

    def __init__(self, faults: Callable[_P, Faults]) -> None:
        self.faults = faults
        functools.update_wrapper(self, faults)

    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> None:
        """Raise ServerError if there is a fault."""
        for fault in self.faults(*args, **kwargs):
            raise fault
