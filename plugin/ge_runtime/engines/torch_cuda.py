"""The torch engine on a GPU: `model.pt2`, captured as CUDA graphs and replayed on its own stream.

A replay allocates nothing, and is one call of the host for any number of kernels. It reads and
writes the addresses of the captured execution: inputs and outputs have fixed addresses on the
device, which all captures share, because only one capture is executed at a time.

Written from torch's documentation and source, and never run on a GPU: the tests use a fake.
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

from ge_runtime.cuda import CAPTURING, Gpu
from ge_runtime.devices import Device
from ge_runtime.engines.base import GraphTensor, Shapes, Signature
from ge_runtime.engines.torch import (
    ElementType,
    ExportedProgram,
    Results,
    Torch,
    TorchEngine,
    TorchTensor,
    element_type,
    import_torch_for,
    load_program,
    moved,
    moving_to,
    signature_of,
)
from ge_runtime.errors import NoDevice, OutOfMemory, PlanFault, RuntimeFault
from ge_runtime.memory.plan import ALIGNMENT
from ge_runtime.specs import Array, Tensors

# torch.cuda or its fake, and its objects.
DeviceModule: TypeAlias = Any
Stream: TypeAlias = Any
CudaGraph: TypeAlias = Any

Key: TypeAlias = tuple[tuple[int, ...], ...]
"""The shapes of a graph's inputs, in the order of its signature."""
Execute: TypeAlias = Callable[[Sequence[TorchTensor]], Mapping[str, TorchTensor]]
"""Executes the graph on device tensors in the order of its inputs; returns results by name."""

_log = logging.getLogger(__name__)

# torch's allocator is not notified of the end of a failed capture: it keeps querying the graph, and
# refuses its pool to other captures (`CUDAGraph::capture_end`). So the graph must stay alive.
_BROKEN: Final[list[CudaGraph]] = []
"""The graphs whose capture failed."""

DEVICE_TYPE: Final = "cuda"
"""torch's name for the device type."""

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
        """Import torch for a GPU. Raises NoDevice, with the fix, if something is missing."""
        torch = import_torch_for(gpu.name, _INSTALL)
        module = torch.get_device_module(DEVICE_TYPE)
        count = module.device_count() if module.is_available() else 0
        if gpu.index >= count:
            made_for = f"CUDA {torch.version.cuda}" if torch.version.cuda else "the CPU alone"
            raise NoDevice(
                f"{gpu.name}: found torch {torch.__version__}, built for {made_for}, which sees "
                f"{count} GPU(s), expected more than {gpu.index}: `{_INSTALL}` installs a build "
                "for CUDA; `nvidia-smi` shows the CUDA version of the driver"
            )
        # FP32 is computed in FP32, also in convolutions, where torch's default is TF32.
        torch.backends.cudnn.allow_tf32 = False
        return cls(torch, module, gpu)

    @property
    def device(self) -> str:
        """The device's name in torch."""
        return f"{DEVICE_TYPE}:{self.gpu.index}"

    def allocations(self) -> int:
        """Return the number of device allocations of torch's caching allocator so far."""
        return int(self.module.memory_stats(self.gpu.index)["num_device_alloc"])

    def fault(self, error: Exception) -> RuntimeFault:
        """Return the fault of an error of torch."""
        no_memory = isinstance(error, self.torch.OutOfMemoryError) or _NO_MEMORY in str(error)
        return self.gpu.fault(f"{self.gpu.name}: torch: {error}", no_memory=no_memory)


class TorchCudaEngine(TorchEngine):
    """A program on a GPU; executions of the shapes passed to `bind` are replayed.

    A replay allocates nothing on the device, and the host waits once, at its end, without the GIL.
    Executions of other shapes, and executions that cannot be captured because they wait for the
    device, run operation by operation in memory of torch's caching allocator.
    """

    queues: ClassVar[bool] = True

    def __init__(
        self,
        cuda: CudaTorch,
        program: ExportedProgram,
        signature: Signature,
        threads: int,
        outputs: Sequence[str],
        path: Path,
    ) -> None:
        """Move the program to the device; called by `open_on`."""
        # The graph is analysed with its weights on the host.
        super().__init__(cuda.torch, program, signature, threads, path, cuda.gpu.health)
        self._module = moved(program, cuda.device).module()
        self._cuda = cuda
        self._requested = frozenset(outputs)
        self._captures: dict[Key, Capture] = {}
        self._handle: int | None = cuda.gpu.acquire_stream()
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
        """Open the graph in `path`, with its weights on the GPU.

        Args:
            gpu: The GPU.
            path: The .pt2 file.
            threads: Maximum number of host threads of an execution.
            outputs: See `TorchEngine.open`.
            workspace_bytes: Must be None: torch cannot limit the memory of one model.

        Raises:
            NoDevice: torch for CUDA, or the GPU, is missing; the text says how to fix it.
            PlanFault: `workspace_bytes` is given.
            ArtifactFault: The graph cannot be opened.
            OutOfMemory: The GPU has not enough memory.
            EngineLost: The GPU is lost.
        """
        if workspace_bytes is not None:
            raise PlanFault(
                f"{path}: found 'workspace_pool_mib', expected none with engine torch, "
                "whose allocator cannot limit the memory of one model"
            )
        cuda = CudaTorch.load(gpu)
        program = load_program(cuda.torch, path)
        signature = signature_of(path, program, outputs)
        with moving_to(gpu.name, path, cuda.fault):
            return cls(cuda, program, signature, threads, outputs, path)

    @property
    def device_allocations(self) -> Callable[[], int]:
        """A function that returns the number of device allocations of torch's allocator so far."""
        return self._cuda.allocations

    @property
    def compiles_each_shape(self) -> bool:
        """False: shapes that were not captured can be executed as well."""
        return False

    @property
    def unplanned(self) -> tuple[str, ...]:
        return (
            "device memory is allocated by torch's caching allocator: the plan's workspace is that "
            "of the graph's own results; additional memory of kernels and libraries is not planned",
            "executions of sizes without a gear allocate inputs, results and workspace; new blocks "
            "of that allocator, in the whole process, count as allocations while serving",
        )

    def bind(self, largest: Sequence[Shapes], memory: Device[NDArray[np.uint8]]) -> None:
        """Capture an execution of each of these shapes, on zeros."""
        cuda = self._cuda
        cuda.gpu.health.ensure_available()
        self._captures = {}  # first: frees the memory of earlier captures for new captures
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
        self._cuda.gpu.health.ensure_available()
        try:
            with self._cuda.module.stream(self._stream):
                try:
                    return super().run(inputs, outputs)
                finally:
                    self._stream.synchronize()  # no copy is in progress after the return
        except RuntimeFault:
            raise
        except Exception as error:
            raise self._fault(error) from error

    def close(self) -> None:
        """Free the program, and torch's cached memory unless the GPU is lost."""
        super().close()
        self._captures = {}
        handle, self._handle = self._handle, None
        if handle is not None and not self.lost:
            self._cuda.gpu.release_stream(handle)
            gc.collect()  # a graph's nodes and its module refer to each other
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
        results = self._module_on(given)
        if not isinstance(results, dict):
            results = {self._signature.outputs[0].name: results}
        return {name: result for name, result in results.items() if name in self._requested}

    def _module_on(self, given: Sequence[TorchTensor]) -> Results:
        args, kwargs = self._arguments.unflatten(given)
        with self._torch.no_grad():  # not inference mode: results are copied outside of it
            return self._module(*args, **kwargs)

    def _fault(self, error: Exception) -> RuntimeFault:
        return self._cuda.fault(error)


@dataclass(frozen=True, slots=True)
class Capture:
    """A captured execution, and its input and output tensors on the device."""

    graph: CudaGraph
    inputs: tuple[TorchTensor, ...]
    outputs: Mapping[str, TorchTensor]


@dataclass(frozen=True, slots=True)
class _Result:
    """The type and size of a result."""

    dtype: ElementType
    shape: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True, slots=True)
class Recorder:
    """Captures executions of one graph on one stream of a device."""

    torch: Torch
    module: DeviceModule
    device: str
    """The device's name in torch."""
    name: str
    """The device's name in messages."""
    stream: Stream
    inputs: Sequence[GraphTensor]
    execute: Execute

    def record(self, largest: Sequence[Shapes]) -> dict[Key, Capture]:
        """Capture an execution of each of these shapes; log shapes that cannot be captured.

        The stream must be current. All captures allocate from one pool, the largest first, so that
        the pool is large enough for the other captures. Raises OutOfMemory, and torch's error if
        the graph cannot be executed at all.
        """
        wanted = sorted(largest, key=self._inputs_bytes, reverse=True)
        # All are executed before the first capture: to know the size of the largest block, and so
        # that libraries do not initialize themselves within a capture.
        tried = [(shapes, self._execute_zeros(shapes)) for shapes in wanted]
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
                _BROKEN.append(graph)  # keeps its pool as well, so later captures use a new one
                pool = self.module.graph_pool_handle()
                # The context is the error that broke the capture. The error itself is from the end
                # of the capture, and only reports that it is broken.
                cause = error.__context__ or error
                if isinstance(cause, self.torch.OutOfMemoryError):
                    raise OutOfMemory(f"{self.name}: torch: {cause}") from error
                sizes = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
                _log.warning(
                    "%s: executions of %s cannot be captured, and allocate while serving: %s",
                    self.name,
                    sizes,
                    str(cause).partition("\n")[0],
                )
        return captures

    def _execute_zeros(self, shapes: Shapes) -> dict[str, _Result]:
        """Execute once on zeros, so that libraries are initialized; return the results' types."""
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
        self.stream.synchronize()  # raises the errors of the execution
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
        # "thread_local": calls of other threads, which execute other models, must not break it.
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
    """Consecutive tensors in a block of bytes."""

    def __init__(self, block: TorchTensor) -> None:
        self._block = block
        self._end = 0

    def next(self, dtype: ElementType, shape: tuple[int, ...]) -> TorchTensor:
        nbytes = math.prod(shape) * int(dtype.itemsize)
        start, self._end = self._end, self._end + _rounded(nbytes)
        return self._block[start : start + nbytes].view(dtype).view(shape)


def _rounded(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
