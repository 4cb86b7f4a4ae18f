"""Forks of a client: they have copies of its descriptors, but its connections are not theirs.

A fork that kept them open would hide the client's death from the service, and what it said on them
would be taken for the client's.
"""

from __future__ import annotations

import os
from typing import Final, Protocol
from weakref import WeakSet


class Connected(Protocol):
    """Something with connections."""

    def abandon(self) -> None:
        """Close the descriptors, in the fork, without a word to the other side.

        No other thread is there, and locks may be held by those that were: none is of use.
        """


_CONNECTED: Final[WeakSet[Connected]] = WeakSet()


def not_inherited(connected: Connected) -> None:
    """Have it abandoned in all forks of this process to come, as long as it is there."""
    _CONNECTED.add(connected)


def _abandon_all() -> None:
    for connected in _CONNECTED:
        connected.abandon()


os.register_at_fork(after_in_child=_abandon_all)
