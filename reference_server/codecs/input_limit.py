"""What `--http-max-input-size` limits, with Triton's texts: JSON, raw bodies, what they become.

The binary tensors behind the JSON of an uncompressed request are not limited.
"""

from __future__ import annotations

from dataclasses import dataclass

from reference_server.core.errors import ServerError, invalid_arg

_CURE = "Use --http-max-input-size to increase the limit."


@dataclass(frozen=True, slots=True)
class InputLimit:
    """`most` bytes; None is any number. All methods raise ServerError INVALID_ARG."""

    most: int | None = None

    def check_json(self, size: int) -> None:
        """Refuse a JSON text of more bytes."""
        if self.most is not None and size > self.most:
            raise invalid_arg(
                f"request JSON size of {size} bytes exceeds the maximum allowed input size of "
                f"{self.most} bytes. {_CURE}"
            )

    def check_raw(self, size: int) -> None:
        """Refuse a body of more bytes that is the data of an input."""
        if self.most is not None and size > self.most:
            raise invalid_arg(
                f"Raw input has a byte_size ({size} bytes) that exceeds the maximum allowed value "
                f"of {self.most} bytes. {_CURE}"
            )

    def check_tensor(self, name: str, size: int) -> None:
        """Refuse an input in JSON that becomes more bytes."""
        if self.most is not None and size > self.most:
            raise invalid_arg(
                f"JSON input '{name}' has a byte_size ({size} bytes) that exceeds the maximum "
                f"allowed value of {self.most} bytes. {_CURE}"
            )

    def check_sum(self, before: int, name: str, size: int) -> None:
        """Refuse an input of generate that becomes more bytes together with those `before`."""
        if self.most is not None and before + size > self.most:
            raise invalid_arg(
                f"request size of {before} bytes with input '{name}' of size {size} bytes exceeds "
                f"the maximum allowed input size of {self.most}. {_CURE}"
            )

    def decompressed_too_large(self) -> ServerError:
        """What is said of a body that decompresses to more bytes."""
        return invalid_arg(
            f"Decompressed data size exceeds the maximum allowed value of {self.most} bytes. "
            f"{_CURE}"
        )


UNLIMITED = InputLimit()
