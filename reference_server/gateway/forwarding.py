"""Headers and metadata that become parameters of requests."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from reference_server.core.errors import invalid_arg
from reference_server.core.request import Parameter

_CASE_MATTERS = "(?-i)"
#: What requests say by parameters of these names, headers must not.
_RESERVED = frozenset(
    {
        *("sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "headers"),
        "binary_data_output",
    }
)


class HeaderForwarding:
    """Finds the headers that become parameters: `pattern` may match anywhere in a name.

    It goes by letter case only if it begins with `(?-i)`. Those whose names are Triton's own can be
    refused. Raises ValueError if it is no pattern.
    """

    def __init__(self, pattern: str, *, refuses_reserved: bool = False) -> None:
        self._refuses_reserved = refuses_reserved
        flags = 0 if pattern.startswith(_CASE_MATTERS) else re.IGNORECASE
        try:
            self._pattern = re.compile(pattern.removeprefix(_CASE_MATTERS).encode(), flags)
        except re.error as error:
            raise ValueError(f"'{pattern}' is no regular expression: {error}") from None

    def added(
        self, parameters: Mapping[str, Parameter], fields: Iterable[tuple[bytes, bytes]]
    ) -> Mapping[str, Parameter]:
        """`parameters` and those of `fields` that match, which win; the last of equal ones.

        Raises ServerError for the first that is refused.
        """
        forwarded: dict[str, Parameter] = {
            name.decode("latin-1"): value.decode("utf-8", "surrogateescape")
            for name, value in fields
            if self._pattern.search(name)
        }
        if self._refuses_reserved:
            for name in forwarded:
                if name in _RESERVED or name.startswith("triton_"):
                    raise invalid_arg(
                        f"Header '{name}' is reserved for Triton usage and cannot be forwarded."
                    )
        return {**parameters, **forwarded} if forwarded else parameters
