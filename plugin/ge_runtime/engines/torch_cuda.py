"""The torch engine on a GPU: `model.pt2`, recorded as CUDA graphs, replayed on a stream of its own.

A replay allocates nothing, and costs the host one call however many kernels there are. It reads and
writes where the recorded execution did: inputs and outputs have addresses of their own on the
device, which all recordings share, as one is executed at a time.

Written from torch's documents and source, and never run on a GPU: tests hold it against a fake.
"""

from __future__ import annotations

import gc
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ge_runtime.cuda.gpu import CAPTURING, Gpu
from ge_runtime.devices import Device
from ge_runtime.engines.base import GraphTensor, Shapes, Signature
from ge_runtime.engines.torch import (
    ElementType,
    ExportedProgram,
    Results,
    Torch,
    TorchEngine,
    TorchTensor,
    bringing_to,
    element_type,
    import_torch_for,
    load_program,
    moved,
    signature_of,
)
from ge_runtime.errors import (
    NoDevice,
    OutOfMemory,
    PlanFault,
    RuntimeFault,
)
from ge_runtime.memory.plan import ALIGNMENT
from ge_runtime.specs import Array, Tensors

# torch.cuda, or what stands for it, and its objects.
DeviceModule: TypeAlias = Any
Stream: TypeAlias = Any
CudaGraph: TypeAlias = Any

Key: TypeAlias = tuple[tuple[int, ...], ...]
"""The shapes of a graph's inputs, in its order."""
Execute: TypeAlias = Callable[[Sequence[TorchTensor]], Mapping[str, TorchTensor]]
"""Executes the graph on inputs on the device, in its order; its results by name."""

_log = logging.getLogger(__name__)

# torch's allocator never learns that a failed capture is over: from then on it asks the graph, and
# refuses the pool to other captures (`CUDAGraph::capture_end`). So the graph has to stay.
_BROKEN: Final[list[CudaGraph]] = []
"""The graphs whose capture failed."""

DEVICE_TYPE: Final = "cuda"
"""torch's name for the kind of device."""

_NO_MEMORY: Final = "out of memory"
_INSTALL: Final = "pip uninstall -y torch; pip install torch"


@dataclass(frozen=True, slots=True)
class CudaTorch:
    """torch with a GPU of this process."""

    torch: Torch
    module: DeviceModule
    """torch.cuda."""
    gpu: Gpu

    @classmethod
    def load(cls, gpu: Gpu) -> CudaTorch:
        """Raises NoDevice, with the cure, for what is missing."""
        torch = import_torch_for(gpu.name, _INSTALL)
        module = torch.get_device_module(DEVICE_TYPE)
        count = module.device_count() if module.is_available() else 0
        if gpu.index >= count:
            made_for = f"CUDA {torch.version.cuda}" if torch.version.cuda else "the CPU alone"
            raise NoDevice(
                f"{gpu.name}: found torch {torch.__version__}, built for {made_for}, which sees "
                f"{count} GPU(s), expected more than {gpu.index}: `{_INSTALL}` brings one for "
                "CUDA; which CUDA the driver can do, `nvidia-smi` says"
            )
        # FP32 stays FP32, also in convolutions, where torch's own default is TF32.
        torch.backends.cudnn.allow_tf32 = False
        return cls(torch, module, gpu)

    @property
    def device(self) -> str:
        """As torch calls it."""
        return f"{DEVICE_TYPE}:{self.gpu.index}"

    def allocations(self) -> int:
        """How often torch's caching allocator has asked the device for memory so far."""
        return int(self.module.memory_stats(self.gpu.index)["num_device_alloc"])

    def fault(self, error: Exception) -> RuntimeFault:
        """What an error of torch means."""
        short = isinstance(error, self.torch.OutOfMemoryError) or _NO_MEMORY in str(error)
        return self.gpu.fault(f"{self.gpu.name}: torch: {error}", short=short)


class TorchCudaEngine(TorchEngine):
    """Executions of the shapes it was bound for are replayed.

    Of those nothing is allocated on the device, and the host waits once, at the end, without the
    GIL. Others, and those that cannot be recorded because they wait for the device in between, are
    executed operation by operation in memory of torch's caching allocator.
    """

    queues: ClassVar[bool] = True

    def __init__(
        self,
        cuda: CudaTorch,
        program: ExportedProgram,
        signature: Signature,
        threads: int,
        outputs: Sequence[str],
    ) -> None:
        """Made by `open_on`; brings the program to the device."""
        # The analysis of the graph is of its weights on the host.
        super().__init__(cuda.torch, program, signature, threads, cuda.gpu.health)
        self._module = moved(program, cuda.device).module()
        self._cuda = cuda
        self._asked = frozenset(outputs)
        self._captures: dict[Key, Capture] = {}
        self._handle: int | None = cuda.gpu.take_stream()
        self._stream = cuda.module.ExternalStream(self._handle, device=cuda.device)

    @classmethod
    def open_on(
        cls,
        gpu: Gpu,
        path: Path,
        threads: int,
        outputs: Sequence[str],
        workspace_bytes: int | None = None,
    ) -> TorchCudaEngine:
        """The graph in `path`, its weights on the GPU. outputs: as for `TorchEngine.open`.

        Raises NoDevice, with the cure, for what is missing, PlanFault, ArtifactFault, OutOfMemory
        or EngineLost.
        """
        if workspace_bytes is not None:
            raise PlanFault(
                f"{path}: found 'workspace_pool_mib', expected none with engine torch, "
                "whose allocator knows no limit of one model's"
            )
        cuda = CudaTorch.load(gpu)
        program = load_program(cuda.torch, path)
        signature = signature_of(path, program, outputs)
        with bringing_to(gpu.name, path, cuda.fault):
            return cls(cuda, program, signature, threads, outputs)

    @property
    def device_allocations(self) -> Callable[[], int]:
        """How often torch's caching allocator has asked the GPU for memory: a function."""
        return self._cuda.allocations

    @property
    def compiles_each_shape(self) -> bool:
        """What is not recorded can be executed all the same."""
        return False

    @property
    def unplanned(self) -> tuple[str, ...]:
        return (
            "device memory is shared out by torch's caching allocator: workspace is what the "
            "graph's own results take, and what kernels and their libraries take besides is in no "
            "plan",
            "executions of other sizes than the gears' take inputs, results and workspace of that "
            "allocator; new blocks of it, in the whole process, count as allocations while serving",
        )

    def bind(self, largest: Sequence[Shapes], memory: Device[NDArray[np.uint8]]) -> None:
        """Records an execution of each of these shapes, on zeros."""
        cuda = self._cuda
        cuda.gpu.health.ensure_there()
        self._captures = {}  # first: the memory of those before is free for the new ones
        recorder = Recorder(
            cuda.torch,
            cuda.module,
            cuda.device,
            cuda.gpu.name,
            self._stream,
            self._signature.inputs,
            self._execute,
        )
        try:
            with cuda.module.stream(self._stream):
                self._captures = recorder.record(largest)
        except RuntimeFault:
            raise
        except Exception as error:
            raise cuda.fault(error) from error

    def run(self, inputs: Tensors, outputs: Mapping[str, Array | None]) -> dict[str, Array]:
        self._cuda.gpu.health.ensure_there()
        try:
            with self._cuda.module.stream(self._stream):
                try:
                    return super().run(inputs, outputs)
                finally:
                    self._stream.synchronize()  # no copy is under way when it returns
        except RuntimeFault:
            raise
        except Exception as error:
            raise self._fault(error) from error

    def close(self) -> None:
        """What torch had for it goes back to the GPU, unless that is lost."""
        super().close()
        self._captures = {}
        handle, self._handle = self._handle, None
        if handle is not None and not self.lost:
            self._cuda.gpu.give_stream(handle)
            gc.collect()  # a graph's nodes and its module hold each other
            self._cuda.module.empty_cache()

    def _call(self, flat: Sequence[TorchTensor]) -> Results:
        capture = self._captures.get(tuple(tuple(tensor.shape) for tensor in flat))
        if capture is None:
            return self._module_on([t.to(self._cuda.device, non_blocking=True) for t in flat])
        for target, tensor in zip(capture.inputs, flat, strict=True):
            target.copy_(tensor, non_blocking=True)
        capture.graph.replay()
        return capture.outputs

    def _execute(self, given: Sequence[TorchTensor]) -> dict[str, TorchTensor]:
        """The results that are asked for, of inputs on the device."""
        results = self._module_on(given)
        if not isinstance(results, dict):
            results = {self._signature.outputs[0].name: results}
        return {name: result for name, result in results.items() if name in self._asked}

    def _module_on(self, given: Sequence[TorchTensor]) -> Results:
        args, kwargs = self._arguments.unflatten(given)
        with self._torch.no_grad():  # results are copied from beyond inference mode
            return self._module(*args, **kwargs)

    def _fault(self, error: Exception) -> RuntimeFault:
        return self._cuda.fault(error)


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
        # All before the first capture: the block below is as large as the largest needs, and
        # nothing of a library's preparation falls into a recording.
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
                _BROKEN.append(graph)  # and with it its pool: the next ones have a new one
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
        tensors = _Block(block)
        inputs = tuple(
            tensors.next(element_type(self.torch, tensor.dtype), shapes[tensor.name])
            for tensor in self.inputs
        )
        outputs = {name: tensors.next(own.dtype, own.shape) for name, own in results.items()}
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


class _Block:
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
