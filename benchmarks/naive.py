"""The plain approach to requests of unequal lengths, as it is usually written: the baseline.

torch pads each request to one length, joins them, and allocates for every call; a bump allocator
holds the batch and frees only when nothing of it is in use. Imported by `benchmarks.ragged`.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

from ge_runtime.engines.base import Engine

WIDTH = 384  # of an embedding


class OutOfMemory(Exception):
    """The allocator's end is reached; what lies before it is not free before all of it is."""


class BumpAllocator:
    """Hands out a fixed block of memory from front to back, and starts over once it is unused."""

    def __init__(self, nbytes: int) -> None:
        self._block = torch.empty(nbytes, dtype=torch.uint8)
        self._end = self._in_use = 0
        self.high_water = 0

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        nbytes = -(-math.prod(shape) * dtype.itemsize // 64) * 64
        if self._end + nbytes > len(self._block):
            raise OutOfMemory
        piece = self._block[self._end : self._end + math.prod(shape) * dtype.itemsize]
        self._end += nbytes
        self._in_use += 1
        self.high_water = max(self.high_water, self._end)
        return piece.view(dtype).view(shape)

    def free(self) -> None:
        self._in_use -= 1
        if not self._in_use:
            self._end = 0


class Naive:
    """Answers batches of token rows with an encoder, each batch in one batch."""

    def __init__(self, engine: Engine, pad_to: int | None, allocator: BumpAllocator) -> None:
        """pad_to: the length that every row gets; None for that of the batch's longest."""
        self._engine = engine
        self._pad_to = pad_to
        self._allocator = allocator
        self.allocated_bytes = 0

    def infer(self, rows: list[NDArray[np.int64]]) -> list[NDArray[np.float32]]:
        """rows: [1, length] each. Returns an embedding [1, WIDTH] for each."""
        length = self._pad_to or max(row.shape[1] for row in rows)
        padded, masks = [], []
        for row in rows:
            beyond = (0, length - row.shape[1])
            tokens = torch.from_numpy(row)
            padded.append(self._counted(torch.nn.functional.pad(tokens, beyond)))
            mask = self._counted(torch.ones_like(tokens))
            masks.append(self._counted(torch.nn.functional.pad(mask, beyond)))
        shape = (len(rows), length)
        ids = torch.cat(padded, out=self._allocator.allocate(shape, torch.int64))
        mask = torch.cat(masks, out=self._allocator.allocate(shape, torch.int64))
        embeddings = self._allocator.allocate((len(rows), WIDTH), torch.float32)
        self._engine.run(
            {"input_ids": ids.numpy(), "attention_mask": mask.numpy()},
            {"embedding": embeddings.numpy()},
        )
        answers = [self._counted(embeddings[i : i + 1].clone()).numpy() for i in range(len(rows))]
        for _ in range(3):
            self._allocator.free()
        return answers

    def _counted(self, tensor: torch.Tensor) -> torch.Tensor:
        self.allocated_bytes += tensor.nbytes
        return tensor


def batches_until_exhausted(capacity: int, batch_bytes: list[int], in_flight: int) -> int | None:
    """After how many batches a bump allocator is used up, `in_flight` of them alive at any time.

    Two are enough for it never to be empty. None if it outlives the given batches.
    """
    allocator = BumpAllocator(capacity)
    alive = 0
    for count, nbytes in enumerate(batch_bytes):
        try:
            allocator.allocate((nbytes,), torch.uint8)
        except OutOfMemory:
            return count
        alive += 1
        if alive == in_flight:
            allocator.free()  # the oldest has been answered
            alive -= 1
    return None
