"""The limit of `--http-max-input-size`, with Triton's error texts.

It applies to JSON, to raw bodies, and to the tensors that are made from JSON. Binary tensors after
the JSON of an uncompressed request are not limited.
"""

from __future__ import annotations

from dataclasses import dataclass

from reference_server.core.errors import ServerError, invalid_arg

_CURE = "Use --http-max-input-size to increase the limit."


@dataclass(frozen=True, slots=True)
class InputLimit:
    """A limit of `most` bytes; None is no limit. All methods raise ServerError INVALID_ARG."""

    most: int | None = None

    def check_json(self, size: int) -> None:
        """Refuse JSON of more bytes."""
        if self.most is not None and size > self.most:
            raise invalid_arg(
                f"request JSON size of {size} bytes exceeds the maximum allowed input size of "
                f"{self.most} bytes. {_CURE}"
            )

    def check_raw(self, size: int) -> None:
        """Refuse a raw body of more bytes."""
        if self.most is not None and size > self.most:
            raise invalid_arg(
                f"Raw input has a byte_size ({size} bytes) that exceeds the maximum allowed value "
                f"of {self.most} bytes. {_CURE}"
            )

    def check_tensor(self, name: str, size: int) -> None:
        """Refuse a JSON input whose tensor has more bytes."""
        if self.most is not None and size > self.most:
            raise invalid_arg(
                f"JSON input '{name}' has a byte_size ({size} bytes) that exceeds the maximum "
                f"allowed value of {self.most} bytes. {_CURE}"
            )

    def check_sum(self, before: int, name: str, size: int) -> None:
        """Refuse an input of generate that has more bytes together with the inputs before it."""
        if self.most is not None and before + size > self.most:
            raise invalid_arg(
                f"request size of {before} bytes with input '{name}' of size {size} bytes exceeds "
                f"the maximum allowed input size of {self.most}. {_CURE}"
            )

    def decompressed_too_large(self) -> ServerError:
        """Return the error for a body that decompresses to more bytes."""
        return invalid_arg(
            f"Decompressed data size exceeds the maximum allowed value of {self.most} bytes. "
            f"{_CURE}"
        )


UNLIMITED = InputLimit()
