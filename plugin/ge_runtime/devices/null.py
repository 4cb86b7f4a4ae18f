"""A card on paper: it has a capacity and keeps its books, and there is not a byte behind it.

Plans and pools for any card can be tried on any machine.
"""

from __future__ import annotations

from typing import ClassVar

from ge_runtime.devices.base import Device


class NullDevice(Device[None]):
    """Buffers have no memory; all else is as on a real device of this capacity."""

    kind: ClassVar[str] = "null"

    def __init__(self, capacity_bytes: int, name: str = "null") -> None:
        super().__init__(name, capacity_bytes)

    def _obtain(self, nbytes: int) -> None:
        return None
