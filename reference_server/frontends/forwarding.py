"""Headers and metadata that reach the model: those whose names match become parameters."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from reference_server.core.request import Parameter

_CASE_MATTERS = "(?-i)"


class HeaderForwarding:
    """Finds the headers to forward: `pattern` may match anywhere in a name, in any letter case.

    A pattern that begins with `(?-i)` goes by letter case. Raises ValueError if it is none.
    """

    def __init__(self, pattern: str) -> None:
        flags = 0 if pattern.startswith(_CASE_MATTERS) else re.IGNORECASE
        try:
            self._pattern = re.compile(pattern.removeprefix(_CASE_MATTERS).encode(), flags)
        except re.error as error:
            raise ValueError(f"'{pattern}' is no regular expression: {error}") from None

    def added(
        self, parameters: Mapping[str, Parameter], fields: Iterable[tuple[bytes, bytes]]
    ) -> Mapping[str, Parameter]:
        """`parameters` and those of `fields` that match, which win; the last of equal ones."""
        forwarded: dict[str, Parameter] = {
            name.decode("latin-1"): value.decode("utf-8", "surrogateescape")
            for name, value in fields
            if self._pattern.search(name)
        }
        return {**parameters, **forwarded} if forwarded else parameters
