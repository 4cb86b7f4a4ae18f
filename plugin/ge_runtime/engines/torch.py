"""The torch engine: executes `model.pt2`, a graph saved by torch.export, on the CPU."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar, Final, TypeAlias
from zipfile import ZipFile

import numpy as np

from ge_runtime.devices import DeviceHealth
from ge_runtime.engines.analysis.nudging import nudge
from ge_runtime.engines.analysis.torch_graph import TorchGraph, weights_bytes
from ge_runtime.engines.base import GraphTensor, LibraryEngine, Shapes, Signature
from ge_runtime.errors import ArtifactFault, EngineFault, NoDevice, OutOfMemory, RuntimeFault
from ge_runtime.memory.lifetimes import Intermediates
from ge_runtime.specs import Array, DType, Tensors

# torch and its objects, whose types cannot be named without importing it.
Torch: TypeAlias = Any
ExportedProgram: TypeAlias = Any
TorchTensor: TypeAlias = Any
Results: TypeAlias = Any
ElementType: TypeAlias = Any

SAMPLE_INPUTS: Final = "/data/sample_inputs/"
TABLES_OF_TENSORS: Final = ("weights_config.json", "constants_config.json")
"""Suffixes of the files in an archive that list weights and constants."""
_DTYPES: Final[Mapping[str, DType]] = {
    f"torch.{dtype.library_name}": dtype for dtype in DType if dtype is not DType.BYTES
}

_NO_MEMORY: Final = "not enough memory"
"""Message of torch's CPU allocator; the allocators of other devices raise OutOfMemoryError."""

_AUTOLOAD: Final = "TORCH_DEVICE_BACKEND_AUTOLOAD"


class TorchEngine(LibraryEngine):
    """A program on the CPU; the base of the engines for other devices."""

    queues: ClassVar[bool] = False
    """True if copies of results from the device are queued; `run` waits for them at its end."""

    def __init__(
        self,
        torch: Torch,
        program: ExportedProgram,
        signature: Signature,
        threads: int,
        path: Path,
        health: DeviceHealth | None = None,
    ) -> None:
        super().__init__(signature, health)
        self._torch = torch
        self._module = program.module()
        self._arguments = program.call_spec.in_spec
        self._graph = TorchGraph(program)
        self._weights_bytes = weights_bytes(program)
        self._threads = threads
        self._path = path

    @classmethod
    def open(cls, path: Path, threads: int, outputs: Sequence[str]) -> TorchEngine:
        """Open the graph in `path`, executed by at most `threads` threads.

        Args:
            path: The .pt2 file.
            threads: Maximum number of threads of an execution.
            outputs: The name of the result, if the graph returns a bare tensor. A graph with
                several results must return them in a dict by name.

        Raises:
            ArtifactFault: The graph cannot be opened, or its results have no names.
        """
        torch = import_torch()
        program = load_program(torch, path)
        return cls(torch, program, signature_of(path, program, outputs), threads, path)

    def run(self, inputs: Tensors, outputs: Mapping[str, Array | None]) -> dict[str, Array]:
        """See `Engine.run`. Results are copied once, because torch allocates its own."""
        try:
            # Takes 0.1 us. torch keeps this per thread, and other models may use the thread.
            self._torch.set_num_threads(self._threads)
            flat = [self._wrap(tensor, inputs[tensor.name]) for tensor in self._signature.inputs]
            results = self._call(flat)
            if not isinstance(results, dict):
                results = {self._signature.outputs[0].name: results}
            return {name: self._deliver(name, results[name], outputs[name]) for name in outputs}
        except RuntimeFault:
            raise
        except Exception as error:
            raise self._fault(error) from error

    def _call(self, flat: Sequence[TorchTensor]) -> Results:
        args, kwargs = self._arguments.unflatten(flat)
        with self._torch.inference_mode():
            return self._module(*args, **kwargs)

    def _fault(self, error: Exception) -> RuntimeFault:
        no_memory = isinstance(error, self._torch.OutOfMemoryError) or _NO_MEMORY in str(error)
        return (OutOfMemory if no_memory else EngineFault)(f"torch: {error}")

    def _wrap(self, tensor: GraphTensor, array: Array) -> TorchTensor:
        wrapped = self._torch.from_numpy(array)
        return wrapped.view(self._torch.bfloat16) if tensor.dtype is DType.BF16 else wrapped

    def _deliver(self, name: str, result: TorchTensor, target: Array | None) -> Array:
        if result.dtype is self._torch.bfloat16:
            result = result.view(self._torch.uint16)  # NumPy has no such type
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

    def perturbed(self, seed: int) -> TorchEngine:
        """See `Perturbable.perturbed`: on the CPU, with another number of threads."""
        names = [tensor.name for tensor in self._signature.outputs]
        engine = TorchEngine.open(self._path, 2 if self._threads == 1 else 1, names)
        engine._nudge_weights(np.random.default_rng(seed))
        return engine

    def _nudge_weights(self, rng: np.random.Generator) -> None:
        torch = self._torch
        types = {
            torch.float32: (torch.int32, "<f4"),
            torch.float64: (torch.int64, "<f8"),
            torch.float16: (torch.int16, "<f2"),
            torch.bfloat16: (torch.int16, ""),
        }
        for weights in (*self._module.parameters(), *self._module.buffers()):
            if weights.dtype in types:
                bits_type, float_type = types[weights.dtype]
                nudge(weights.detach().view(bits_type).numpy(), float_type, rng)

    def close(self) -> None:
        self._module = None


def import_torch() -> Torch:
    """Import torch without automatically loading back ends of other devices.

    If torch_npu is installed, `import torch` imports it as well. Without CANN's libraries both
    imports fail, and a failed import of torch cannot be repeated in the same process. Code that
    uses torch.npu must `import torch_npu`. If TORCH_DEVICE_BACKEND_AUTOLOAD is already set, it
    stays. Calls after the first import of torch change nothing.
    """
    # torch's OpenMP threads spin while they wait unless this is set before the import. Measured
    # with a small CNN and 2 threads on 2 cores in use: 350 ms per batch with spinning, 7 ms
    # without.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    with _no_autoload():
        import torch
    return torch


def import_torch_for(device: str, cure: str) -> Torch:
    """Import torch for a device; `cure` is the command that installs it. Raises NoDevice."""
    try:
        return import_torch()
    except (ImportError, OSError, RuntimeError) as error:  # its libraries or back ends may fail
        raise NoDevice(f"{device}: found no torch ({error}), expected it: `{cure}`") from error


@contextmanager
def _no_autoload() -> Iterator[None]:
    """Switch the loading of back ends off within the context; child processes are not affected."""
    given = _AUTOLOAD in os.environ
    os.environ.setdefault(_AUTOLOAD, "0")
    try:
        yield
    finally:
        if not given:
            del os.environ[_AUTOLOAD]


def load_program(torch: Torch, path: Path) -> ExportedProgram:
    """Load the program in `path`.

    Raises:
        ArtifactFault: torch cannot open the file, or would execute a pickle in it.
    """
    try:
        _refuse_pickles(torch, path)
        return torch.export.load(path)
    except ArtifactFault:
        raise
    except Exception as error:
        raise ArtifactFault(f"{path}: torch cannot open it: {error}") from error


def _refuse_pickles(torch: Torch, path: Path) -> None:
    """Raise ArtifactFault if the file has a pickle of objects, which can execute any code.

    `torch.export.load` executes it if it is not a pickle of tensors.
    """
    with ZipFile(path) as archive:
        for name in archive.namelist():
            found = ""
            if name.endswith(TABLES_OF_TENSORS):
                found = pickled_tensor(archive.read(name))
            elif SAMPLE_INPUTS in f"/{name}" and (content := archive.read(name)):
                try:
                    torch.load(BytesIO(content), weights_only=True)
                except Exception:  # of torch and of what it reads
                    found = name
            if found:
                raise ArtifactFault(
                    f"{path}: found {found} as a pickle of objects, which can execute any code; "
                    "expected tensors. Save the program without objects or tensor subclasses"
                )


def pickled_tensor(table: bytes) -> str:
    """Return the name of an entry of a table of tensors that is pickled; empty if none is."""
    entries = json.loads(table).get("config", {})
    return next((name for name, own in entries.items() if own.get("use_pickle")), "")


def moved(program: ExportedProgram, device: str) -> ExportedProgram:
    """Move a program's weights, and the tensors it creates, to a device. Raises torch's errors."""
    from torch.export.passes import move_to_device_pass

    return move_to_device_pass(program, device)


@contextmanager
def moving_to(
    device: str, path: Path, fault_of: Callable[[Exception], RuntimeFault]
) -> Iterator[None]:
    """Convert errors within the context, in which a program is moved to a device.

    Args:
        device: The device's name, for errors.
        path: The program's file, for errors.
        fault_of: Converts an error of torch to a fault.

    Raises:
        OutOfMemory: The device has not enough memory.
        EngineLost: The device is lost.
        ArtifactFault: Any other error.
    """
    try:
        yield
    except RuntimeFault:
        raise
    except Exception as error:
        fault = fault_of(error)
        if isinstance(fault, EngineFault):
            fault = ArtifactFault(f"{path}: cannot be moved to {device}: {error}")
        raise fault from error


def element_type(torch: Torch, dtype: DType) -> ElementType:
    """Return torch's type for a type with elements of fixed size."""
    (name,) = (name for name, own in _DTYPES.items() if own is dtype)
    return getattr(torch, name.removeprefix("torch."))


def signature_of(path: Path, program: ExportedProgram, outputs: Sequence[str]) -> Signature:
    """Return a program's signature; for `outputs` see `TorchEngine.open`. Raises ArtifactFault."""
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
    # Sizes that vary are SymInts, which behave like integers but have another type.
    dims = tuple(dim if type(dim) is int else None for dim in value.shape)
    symbols = tuple(None if type(dim) is int else str(dim) for dim in value.shape)
    return GraphTensor(name, dtype, dims, symbols)
