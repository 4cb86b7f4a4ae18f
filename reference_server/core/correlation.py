"""The limit of a sequence's id."""

from __future__ import annotations

from reference_server.core.errors import unsupported

_LARGEST = 128


def string_id(text: str) -> str:
    """`text` as the id of a sequence; what is no text in it stands as lone surrogates.

    Raises ServerError UNSUPPORTED if it has more than 128 bytes; Triton's text says characters.
    """
    if len(text.encode("utf-8", "surrogateescape")) > _LARGEST:
        raise unsupported(f"string correlation ID cannot be longer than {_LARGEST} characters")
    return text
