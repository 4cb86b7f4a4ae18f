"""Registered regions of shared memory, as clients name them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SystemRegion:
    """`byte_size` bytes from `offset` on of the POSIX shared memory object `key`.

    The key stands as the client gave it, with or without its slash.
    """

    name: str
    key: str
    offset: int
    byte_size: int


@dataclass(frozen=True, slots=True)
class CudaRegion:
    """The first `byte_size` bytes of an allocation that another process has on a GPU."""

    name: str
    device_id: int
    byte_size: int
