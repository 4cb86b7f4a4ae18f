"""The torch engine: `model.pt2`, a graph saved by torch.export, on the CPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Final, TypeAlias

from ge_runtime.devices.health import DeviceHealth
from ge_runtime.engines.analysis.torch_graph import TorchGraph, weights_bytes
from ge_runtime.engines.base import GraphTensor, LibraryEngine, Shapes, Signature
from ge_runtime.errors import ArtifactFault, EngineFault, NoDevice, OutOfMemory, RuntimeFault
from ge_runtime.memory.lifetimes import Intermediates
from ge_runtime.specs import Array, DType, Tensors

# torch and its own objects, whose types cannot be named without importing it.
Torch: TypeAlias = Any
ExportedProgram: TypeAlias = Any
TorchTensor: TypeAlias = Any
Results: TypeAlias = Any
ElementType: TypeAlias = Any

_DTYPES: Final[Mapping[str, DType]] = {
    "torch.bool": DType.BOOL,
    "torch.uint8": DType.UINT8,
    "torch.uint16": DType.UINT16,
    "torch.uint32": DType.UINT32,
    "torch.uint64": DType.UINT64,
    "torch.int8": DType.INT8,
    "torch.int16": DType.INT16,
    "torch.int32": DType.INT32,
    "torch.int64": DType.INT64,
    "torch.float16": DType.FP16,
    "torch.float32": DType.FP32,
    "torch.float64": DType.FP64,
    "torch.bfloat16": DType.BF16,
}

_NO_MEMORY: Final = "not enough memory"
"""What torch's allocator for the CPU says; those of other devices raise OutOfMemoryError."""

_AUTOLOAD: Final = "TORCH_DEVICE_BACKEND_AUTOLOAD"


class TorchEngine(LibraryEngine):
    """A program on the CPU; engines of other devices are derived from it."""

    queues: ClassVar[bool] = False
    """Whether copies of results from a device are queued, and waited for at the end of `run`."""

    def __init__(
        self,
        torch: Torch,
        program: ExportedProgram,
        signature: Signature,
        threads: int,
        health: DeviceHealth | None = None,
    ) -> None:
        super().__init__(signature, health)
        self._torch = torch
        self._module = program.module()
        self._arguments = program.call_spec.in_spec
        self._graph = TorchGraph(program)
        self._weights_bytes = weights_bytes(program)
        self._threads = threads

    @classmethod
    def open(cls, path: Path, threads: int, outputs: Sequence[str]) -> TorchEngine:
        """The graph in `path`, run by at most `threads` threads. Raises ArtifactFault.

        outputs: the name of a result that the graph returns bare. A graph with several results
        must return them in a dict by name: a tuple's order is no name.
        """
        torch = import_torch()
        program = load_program(torch, path)
        return cls(torch, program, signature_of(path, program, outputs), threads)

    def run(self, inputs: Tensors, outputs: Mapping[str, Array | None]) -> dict[str, Array]:
        """Results are copied once into given arrays: torch allocates its own."""
        try:
            # torch keeps this number per thread, and the thread may serve other models. 0.1 us.
            self._torch.set_num_threads(self._threads)
            flat = [self._shown(tensor, inputs[tensor.name]) for tensor in self._signature.inputs]
            results = self._call(flat)
            if not isinstance(results, dict):
                results = {self._signature.outputs[0].name: results}
            return {name: self._deliver(name, results[name], outputs[name]) for name in outputs}
        except RuntimeFault:
            raise
        except Exception as error:
            raise self._fault(error) from error

    def _call(self, flat: Sequence[TorchTensor]) -> Results:
        """What the graph gives for these inputs, in the signature's order."""
        args, kwargs = self._arguments.unflatten(flat)
        with self._torch.inference_mode():
            return self._module(*args, **kwargs)

    def _fault(self, error: Exception) -> RuntimeFault:
        short = isinstance(error, self._torch.OutOfMemoryError) or _NO_MEMORY in str(error)
        return (OutOfMemory if short else EngineFault)(f"torch: {error}")

    def _shown(self, tensor: GraphTensor, array: Array) -> TorchTensor:
        """An array as the tensor that it is, in the same memory."""
        shown = self._torch.from_numpy(array)
        return shown.view(self._torch.bfloat16) if tensor.dtype is DType.BF16 else shown

    def _deliver(self, name: str, result: TorchTensor, target: Array | None) -> Array:
        if result.dtype is self._torch.bfloat16:
            result = result.view(self._torch.uint16)  # its bits
        if target is None:
            array: Array = result.cpu().numpy()
            return array
        shape = tuple(result.shape)
        if shape != target.shape:  # copy_ would broadcast
            raise EngineFault(
                f"torch: output '{name}': found shape {list(shape)}, expected {list(target.shape)}"
            )
        self._torch.from_numpy(target).copy_(result, non_blocking=self.queues)
        return target

    def weights_bytes(self) -> int:
        return self._weights_bytes

    def device_io_bytes(self) -> int | None:
        return None if self.queues else 0

    def intermediates(self, shapes: Shapes) -> Intermediates | None:
        return self._graph.intermediates(shapes)

    def close(self) -> None:
        self._module = None


def import_torch() -> Torch:
    """torch, without back ends of devices that load themselves. A choice in the environment stands.

    Where torch_npu is installed, `import torch` imports it too, and without CANN's libraries both
    fail, for good: an import of torch that failed cannot be made up for in the same process. Code
    that uses torch.npu says `import torch_npu`. Whoever imports torch before has to set the
    variable himself.
    """
    # torch's OpenMP threads spin while they wait, unless told otherwise before its import.
    # Measured with a small CNN and 2 threads on 2 cores that others use too: 350 ms a batch
    # when they spin, 7 ms when they sleep.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    with _no_autoload():
        import torch
    return torch


def import_torch_for(device: str, cure: str) -> Torch:
    """torch, for a device that needs it. cure: the command. Raises NoDevice, with both."""
    try:
        return import_torch()
    except (ImportError, OSError, RuntimeError) as error:  # of its libraries, of its back ends
        raise NoDevice(f"{device}: found no torch ({error}), expected it: `{cure}`") from error


@contextmanager
def _no_autoload() -> Iterator[None]:
    """For the length of a `with`; child processes choose for themselves."""
    given = _AUTOLOAD in os.environ
    os.environ.setdefault(_AUTOLOAD, "0")
    try:
        yield
    finally:
        if not given:
            del os.environ[_AUTOLOAD]


def load_program(torch: Torch, path: Path) -> ExportedProgram:
    """The program in `path`. Raises ArtifactFault."""
    try:
        return torch.export.load(path)
    except Exception as error:
        raise ArtifactFault(f"{path}: torch cannot open it: {error}") from error


def moved(program: ExportedProgram, device: str) -> ExportedProgram:
    """The program with its weights, and what it makes without inputs, on the device.

    Raises what torch raises.
    """
    from torch.export.passes import move_to_device_pass

    return move_to_device_pass(program, device)


@contextmanager
def bringing_to(
    device: str, path: Path, fault_of: Callable[[Exception], RuntimeFault]
) -> Iterator[None]:
    """For the length of a `with` in which a program goes to a device: what fails, by its cause.

    fault_of: what an error of torch means there. Raises ArtifactFault for what is neither of the
    device's memory nor of its loss.
    """
    try:
        yield
    except RuntimeFault:
        raise
    except Exception as error:
        fault = fault_of(error)
        if isinstance(fault, EngineFault):
            fault = ArtifactFault(f"{path}: it cannot be brought to {device}: {error}")
        raise fault from error


def element_type(torch: Torch, dtype: DType) -> ElementType:
    """The type of torch's tensors that this is, which is of a fixed size."""
    (name,) = (name for name, own in _DTYPES.items() if own is dtype)
    return getattr(torch, name.removeprefix("torch."))


def signature_of(path: Path, program: ExportedProgram, outputs: Sequence[str]) -> Signature:
    """What the program takes and gives. outputs: see `TorchEngine.open`. Raises ArtifactFault."""
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    graph = program.graph_signature
    results = program.call_spec.out_spec.unflatten([values[name] for name in graph.user_outputs])
    if not isinstance(results, dict):
        if len(graph.user_outputs) != 1 or len(outputs) != 1:
            raise ArtifactFault(
                f"{path}: found {len(graph.user_outputs)} result(s) without names for the outputs "
                f"{', '.join(outputs)}; expected `forward` to return a dict of tensors by name"
            )
        results = {outputs[0]: values[graph.user_outputs[0]]}
    return Signature(
        inputs=tuple(_tensor(path, str(name), values.get(name)) for name in graph.user_inputs),
        outputs=tuple(_tensor(path, str(name), value) for name, value in results.items()),
    )


def _tensor(path: Path, name: str, value: TorchTensor) -> GraphTensor:
    dtype = _DTYPES.get(str(getattr(value, "dtype", None)))
    if dtype is None:
        raise ArtifactFault(
            f"{path}: found '{name}' of type {getattr(value, 'dtype', type(value).__name__)}, "
            "expected a tensor of a type that Triton has"
        )
    # Sizes that vary are symbols, which look like integers but are none.
    dims = tuple(dim if type(dim) is int else None for dim in value.shape)
    symbols = tuple(None if type(dim) is int else str(dim) for dim in value.shape)
    return GraphTensor(name, dtype, dims, symbols)
