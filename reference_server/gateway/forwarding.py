"""Forwards headers and metadata to models, as parameters of requests."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from reference_server.core.errors import invalid_arg
from reference_server.core.request import Parameter

_CASE_MATTERS = "(?-i)"
#: Parameters with these names have a meaning of their own, so headers must not set them.
_RESERVED = frozenset(
    {
        *("sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "headers"),
        "binary_data_output",
    }
)


class HeaderForwarding:
    """Selects the headers that become parameters.

    Args:
        pattern: A regular expression that matches anywhere in the name of a header. It is
            case-sensitive only if it begins with `(?-i)`.
        refuses_reserved: Whether reserved names are refused.

    Raises:
        ValueError: The pattern is no regular expression.
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
        """Return `parameters` and the matching `fields`; the last value of a name wins.

        Raises ServerError INVALID_ARG for the first reserved name.
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
