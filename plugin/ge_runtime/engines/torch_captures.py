"""Executions that are recorded once and replayed: a CUDA graph for each set of shapes.

A replay allocates nothing, and costs the host one call however many kernels there are. It reads and
writes where the recorded execution did: inputs and outputs have places of their own on the device,
which all recordings share, as one is executed at a time.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from ge_runtime.cuda.gpu import CAPTURING
from ge_runtime.engines.base import GraphTensor, Shapes
from ge_runtime.engines.importing import Torch
from ge_runtime.engines.torch import ElementType, TorchTensor, element_type
from ge_runtime.errors import OutOfMemory
from ge_runtime.memory.plan import ALIGNMENT

# torch.cuda, or what stands for it, and its objects.
DeviceModule: TypeAlias = Any
Stream: TypeAlias = Any
CudaGraph: TypeAlias = Any

Key: TypeAlias = tuple[tuple[int, ...], ...]
"""The shapes of a graph's inputs, in its order."""
Execute: TypeAlias = Callable[[Sequence[TorchTensor]], Mapping[str, TorchTensor]]
"""Executes the graph on inputs on the device, in its order; its results by name."""

_log = logging.getLogger(__name__)

_BROKEN: Final[list[CudaGraph]] = []
"""Those whose capture failed. torch's allocator never learns that it is over: from then on it asks
the graph, and refuses the pool to other captures (`CUDAGraph::capture_end`)."""


@dataclass(frozen=True, slots=True)
class Capture:
    """One recording, and where it reads and writes on the device."""

    graph: CudaGraph
    inputs: tuple[TorchTensor, ...]
    outputs: Mapping[str, TorchTensor]


@dataclass(frozen=True, slots=True)
class _Result:
    """What a result is like, whoever holds it."""

    dtype: ElementType
    shape: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True, slots=True)
class Recorder:
    """Records executions of one graph on one stream of a device."""

    torch: Torch
    module: DeviceModule
    device: str
    """As torch calls it."""
    name: str
    """For people."""
    stream: Stream
    inputs: Sequence[GraphTensor]
    execute: Execute

    def record(self, largest: Sequence[Shapes]) -> dict[Key, Capture]:
        """A recording for each of these shapes that can be recorded; the log names the others.

        The stream is current. All recordings allocate from one pool, the largest first, so that the
        others find what they need there. Raises OutOfMemory, and what torch raises where the graph
        cannot be executed at all.
        """
        wanted = sorted(largest, key=self._inputs_bytes, reverse=True)
        tried = [(shapes, self._tried(shapes)) for shapes in wanted]
        needed = (
            self._inputs_bytes(shapes) + sum(_rounded(each.nbytes) for each in results.values())
            for shapes, results in tried
        )
        block = self.torch.zeros(max(needed, default=0), dtype=self.torch.uint8, device=self.device)
        pool = self.module.graph_pool_handle()
        captures: dict[Key, Capture] = {}
        for shapes, results in tried:
            graph = self.module.CUDAGraph()
            try:
                captures[self._key(shapes)] = self._capture(graph, shapes, results, block, pool)
            except RuntimeError as error:
                _BROKEN.append(graph)
                pool = self.module.graph_pool_handle()
                # What broke the capture; its end then says no more than that it is broken.
                cause = error.__context__ or error
                if isinstance(cause, self.torch.OutOfMemoryError):
                    raise OutOfMemory(f"{self.name}: torch: {cause}") from error
                sizes = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
                _log.warning(
                    "%s: executions of %s are not recorded, and allocate while serving: %s",
                    self.name,
                    sizes,
                    str(cause).partition("\n")[0],
                )
        return captures

    def _tried(self, shapes: Shapes) -> dict[str, _Result]:
        """The results of an execution on zeros; what libraries prepare, they prepare now."""
        given = [
            self.torch.zeros(
                shapes[tensor.name],
                dtype=element_type(self.torch, tensor.dtype),
                device=self.device,
            )
            for tensor in self.inputs
        ]
        results = {
            name: _Result(result.dtype, tuple(result.shape), result.numel() * result.itemsize)
            for name, result in self.execute(given).items()
        }
        self.stream.synchronize()  # what fails, fails here
        return results

    def _capture(
        self,
        graph: CudaGraph,
        shapes: Shapes,
        results: Mapping[str, _Result],
        block: TorchTensor,
        pool: object,
    ) -> Capture:
        places = _Places(block)
        inputs = tuple(
            places.next(element_type(self.torch, tensor.dtype), shapes[tensor.name])
            for tensor in self.inputs
        )
        outputs = {name: places.next(own.dtype, own.shape) for name, own in results.items()}
        # Only what this thread does can break it: other models execute meanwhile.
        capturing = self.module.graph(
            graph, pool=pool, stream=self.stream, capture_error_mode="thread_local"
        )
        with CAPTURING, capturing:
            for name, result in self.execute(inputs).items():
                outputs[name].copy_(result)
        return Capture(graph, inputs, outputs)

    def _key(self, shapes: Shapes) -> Key:
        return tuple(shapes[tensor.name] for tensor in self.inputs)

    def _inputs_bytes(self, shapes: Shapes) -> int:
        return sum(
            _rounded(math.prod(shapes[tensor.name]) * tensor.dtype.numpy.itemsize)
            for tensor in self.inputs
        )


class _Places:
    """Tensors one after the other in a block of bytes."""

    def __init__(self, block: TorchTensor) -> None:
        self._block = block
        self._end = 0

    def next(self, dtype: ElementType, shape: tuple[int, ...]) -> TorchTensor:
        nbytes = math.prod(shape) * int(dtype.itemsize)
        start, self._end = self._end, self._end + _rounded(nbytes)
        return self._block[start : start + nbytes].view(dtype).view(shape)


def _rounded(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
