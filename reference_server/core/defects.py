"""Where a defect of the server's own ends: it is logged, and costs no more than what it broke."""

from __future__ import annotations

import logging
from types import TracebackType

log = logging.getLogger(__name__)


class Contained:
    """`with` it, exceptions are logged under `what`, and execution goes on behind the block.

    Not BaseExceptions. To be made once and used by any number of threads.
    """

    __slots__ = ("_what",)

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        log.error("%s", self._what, exc_info=error)
        return True
