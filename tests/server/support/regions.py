"""Shared memory for codecs: regions that are bytearrays, and objects for tests that map."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from reference_server.core.errors import not_found

OBJECTS = Path("/dev/shm")


class MadeUpRegions:
    """Regions by name; knows nothing of bounds, and keeps what it was asked."""

    def __init__(self, **regions: bytes) -> None:
        self.bytes = {name: bytearray(content) for name, content in regions.items()}
        self.asked: list[tuple[object, ...]] = []

    def read(self, region: str, offset: int, byte_size: int) -> memoryview:
        return self._part("read", region, offset, byte_size)

    def output_buffer(self, region: str, offset: int, byte_size: int) -> MadeUpBuffer:
        return MadeUpBuffer(self._part("output_buffer", region, offset, byte_size))

    def _part(self, *asked: object) -> memoryview:
        self.asked.append(asked)
        _, region, offset, byte_size = asked
        if region not in self.bytes:
            raise not_found(f"no region '{region}'")
        return memoryview(self.bytes[region])[offset : offset + byte_size]


class MadeUpBuffer:
    """A part of a bytearray."""

    def __init__(self, part: memoryview) -> None:
        self._part = part

    @property
    def byte_size(self) -> int:
        return len(self._part)

    def write(self, data: memoryview) -> None:
        self._part[: len(data)] = data


@contextmanager
def shared_object(content: bytes) -> Iterator[str]:
    """A shared memory object for as long as the test runs; gives its key."""
    path = OBJECTS / f"test_{uuid.uuid4().hex}"
    path.write_bytes(content)
    try:
        yield f"/{path.name}"
    finally:
        path.unlink(missing_ok=True)


def object_file(key: str) -> Path:
    """The file behind a key."""
    return OBJECTS / key.lstrip("/")
