"""What ATC refuses: a code of its list, and what is wrong.

The codes are those of GE's own list (its file of error codes, open source); its sentences are not.
"""

from __future__ import annotations


class CompileFault(Exception):
    """A command line or a model that ATC turns down.

    code: such as "E10035".
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code
