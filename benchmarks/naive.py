"""Baseline for requests of different lengths: padded batches, built with torch.

torch pads each request, concatenates the batch and allocates memory for every call; a bump
allocator holds the batch. Imported by `benchmarks.ragged`.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

from ge_runtime.engines.base import Engine

WIDTH = 384
"""Size of an embedding."""


class OutOfMemory(Exception):
    """The block is used up; memory is reused only after all pieces are free."""


class BumpAllocator:
    """Allocates from a fixed block, front to back, and restarts when all pieces are free."""

    def __init__(self, nbytes: int) -> None:
        self._block = torch.empty(nbytes, dtype=torch.uint8)
        self._end = self._in_use = 0

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        nbytes = -(-math.prod(shape) * dtype.itemsize // 64) * 64
        if self._end + nbytes > len(self._block):
            raise OutOfMemory
        piece = self._block[self._end : self._end + math.prod(shape) * dtype.itemsize]
        self._end += nbytes
        self._in_use += 1
        return piece.view(dtype).view(shape)

    def free(self) -> None:
        self._in_use -= 1
        if not self._in_use:
            self._end = 0


class Naive:
    """Executes each batch of token rows in one padded execution of an encoder.

    Args:
        engine: The encoder.
        pad_to: Length of every row; None for the longest row of the batch.
        allocator: Memory of the batch.
    """

    def __init__(self, engine: Engine, pad_to: int | None, allocator: BumpAllocator) -> None:
        self._engine = engine
        self._pad_to = pad_to
        self._allocator = allocator
        self.allocated_bytes = 0

    def infer(self, rows: list[NDArray[np.int64]]) -> list[NDArray[np.float32]]:
        """Return an embedding [1, WIDTH] for each row [1, length]."""
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
