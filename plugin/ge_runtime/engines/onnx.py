"""The ONNX Runtime engine: executes `model.onnx` on the CPU and on a GPU.

On the CPU results are written directly into planned memory. On a GPU the CUDA provider executes;
only its behaviour without a GPU, or without CUDA's libraries, was tested.
"""

from __future__ import annotations

import ctypes
import io
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar, Final, TypeAlias

import numpy as np

from ge_runtime.devices import Accelerator, DeviceHealth
from ge_runtime.engines.analysis.nudging import nudged_weights
from ge_runtime.engines.analysis.onnx_file import DTYPES, OnnxFile
from ge_runtime.engines.analysis.onnx_graph import UNPADDED, OnnxGraph
from ge_runtime.engines.base import GraphTensor, LibraryEngine, Shapes, Signature
from ge_runtime.engines.onnx_arena import OnnxArena
from ge_runtime.engines.onnx_session import (
    PROCESS_SESSIONS,
    GraphExecution,
    Onnxruntime,
    Session,
    import_onnxruntime,
    open_session,
)
from ge_runtime.errors import (
    ArtifactFault,
    EngineFault,
    InvalidValue,
    NoDevice,
    OutOfMemory,
    RuntimeFault,
)
from ge_runtime.memory.lifetimes import Intermediates
from ge_runtime.specs import Array, DType, Tensors

# An object of onnxruntime, which has no type stubs.
NodeArg: TypeAlias = Any

_NAMES: Final = {DType.FP32: "float", DType.FP64: "double", DType.BYTES: "string"}
_DTYPES: Final[Mapping[str, DType]] = {
    f"tensor({_NAMES.get(dtype, dtype.library_name)})": dtype for dtype in DType
}
_ONNX_TYPES: Final[Mapping[DType, int]] = {dtype: number for number, dtype in DTYPES.items()}
_BFLOAT16: Final = _ONNX_TYPES[DType.BF16]
"""TensorProto.DataType.BFLOAT16; NumPy has no such type to pass instead."""
_NO_MEMORY: Final = re.compile(
    r"Failed to allocate memory|bad_?\s?alloc|smaller than requested|out of memory|ALLOC_FAILED",
    re.IGNORECASE,
)
"""Messages of ONNX Runtime's arena, the C++ library and CUDA for a failed allocation.

ONNX Runtime has no exception type for it.
"""
ONE_THREAD_FLOPS: Final = 10**8
"""Executions of less work use one thread, unless config.pbtxt gives the number of threads.

ONNX Runtime distributes even small nodes, and waking a thread takes longer than it saves. Measured
on 2 cores without spinning: with 2 threads instead of 1, an execution of 0.003 GFLOP takes 1.45
times as long, an execution of 0.1 GFLOP 0.95 times (with 1.3 to 1.4 times the CPU time), and an
execution of 4 GFLOP 0.7 times.
"""
_MOST_TWICE: Final = 2 * 2**20
"""Maximum bytes of weights that are loaded twice, for one thread and for several.

Weights of both sessions must fit into a core's cache. Larger weights are read from memory again
whenever the other session executed before: 0.1 to 0.45 ms more for an encoder of 13 MiB.
"""
_OUT_OF_BOUNDS: Final = re.compile(
    r"(?:Name:'(?P<node>[^']*)')?[^']*idx=(?P<found>-?\d+) must be within the inclusive range "
    r"\[(?P<least>-?\d+), ?(?P<most>-?\d+)\]"
)
"""ONNX Runtime's message for an index outside the data of a Gather node."""


class OnnxEngine(LibraryEngine):
    """A session on the CPU, shared by all engines with equal graph content and number of threads.

    All sessions allocate from one arena. Thread-safe: several executions may run at a time.
    """

    copies: ClassVar[bool] = False
    """True if inputs and outputs are copied to a device and back."""

    def __init__(
        self,
        session: Session,
        signature: Signature,
        path: Path,
        health: DeviceHealth | None = None,
        *,
        arena: OnnxArena | None = None,
        release: Callable[[], None] = lambda: None,
    ) -> None:
        """Initialize the engine; `release` is called when the engine is closed."""
        super().__init__(signature, health)
        self._session = session
        self._arena = arena
        self._release = release
        self._small: Session | None = None  # executes on one thread
        self._small_elements = 0  # of all inputs: executions with fewer use `_small`
        self._bfloat16 = {
            tensor.name
            for tensor in (*signature.inputs, *signature.outputs)
            if tensor.dtype is DType.BF16
        }
        self._path = path
        value = import_onnxruntime().OrtValue
        # Takes a third of the time of `ortvalue_from_numpy`. Old versions lack this function.
        typed = getattr(value, "ortvalue_from_numpy_with_onnx_type", None)
        self._value_of = typed or (lambda array, _: value.ortvalue_from_numpy(array))
        self._types = {tensor.name: _ONNX_TYPES[tensor.dtype] for tensor in signature.outputs}

    @classmethod
    def open(cls, path: Path, threads: int, outputs: Sequence[str] = ()) -> OnnxEngine:
        """Open the graph in `path`, executed by at most `threads` threads. Raises ArtifactFault.

        `outputs` is ignored, because the graph's outputs have names.
        """
        shared = PROCESS_SESSIONS.acquire(path, threads)
        try:
            signature = signature_of(path, shared.session)
        except BaseException:
            shared.release()
            raise
        return cls(shared.session, signature, path, arena=shared.arena, release=shared.release)

    def adapt_threads(self, largest: Shapes) -> str:
        """See `AdaptsThreads.adapt_threads`. Without the package onnx nothing is changed."""
        threads = self._session.get_session_options().intra_op_num_threads
        # Even small executions of a graph with many weights are much work.
        if threads == 1 or self._file.weights_bytes > _MOST_TWICE:
            return ""
        flops = self.flops(largest)
        if flops is None:
            return "small executions could use 1, if the package onnx were installed"
        shared = PROCESS_SESSIONS.acquire(self._path, 1)
        release, self._small = self._release, shared.session
        if flops < ONE_THREAD_FLOPS:
            self._session, self._release = shared.session, shared.release
            release()
            return "1 is used, as no execution is large"

        def release_both() -> None:
            release()
            shared.release()

        self._release = release_both
        # The work grows with the elements. The work per element differs by 9 % between 25 and 4,096
        # tokens of an encoder, by 19 % between 35 x 35 and 256 x 256 pixels of a convolution.
        elements = sum(map(math.prod, largest.values()))
        self._small_elements = ONE_THREAD_FLOPS * elements // flops
        return f"1 for executions below {ONE_THREAD_FLOPS / 1e9:g} GFLOP"

    def run(self, inputs: Tensors, outputs: Mapping[str, Array | None]) -> dict[str, Array]:
        session = self._session
        if self._small is not None:
            elements = 0
            for array in inputs.values():
                elements += array.size
            if elements < self._small_elements:
                session = self._small
        binding = session.io_binding()
        try:
            for name, array in inputs.items():
                if name in self._bfloat16:  # the array is uint16, so the type must be passed
                    address = array.ctypes.data
                    binding.bind_input(name, "cpu", 0, _BFLOAT16, array.shape, address)
                else:
                    binding.bind_cpu_input(name, array)
            planned: dict[str, Array] = {}  # the outputs whose memory is given
            for name, target in outputs.items():
                if target is None:
                    binding.bind_output(name, "cpu")
                    continue
                planned[name] = target
                if name in self._bfloat16:
                    address = target.ctypes.data
                    binding.bind_output(name, "cpu", 0, _BFLOAT16, target.shape, address)
                else:  # refers to the array's memory
                    binding.bind_ortvalue_output(name, self._value_of(target, self._types[name]))
            if self.copies:  # binding an input starts its copy to the device
                binding.synchronize_inputs()
            session.run_with_iobinding(binding)
            if self.copies:
                binding.synchronize_outputs()
            if len(planned) == len(outputs):
                return planned
            return {
                name: value.numpy() if target is None else target
                for (name, target), value in zip(
                    outputs.items(), binding.get_outputs(), strict=True
                )
            }
        except Exception as error:
            # Not stored in a variable, because that would keep the fault and its frames alive.
            raise self._invalid_value(str(error), inputs) or self._fault(
                f"onnxruntime: {error}",
                no_memory=isinstance(error, MemoryError) or bool(_NO_MEMORY.search(str(error))),
            ) from error

    def _invalid_value(self, text: str, inputs: Tensors) -> InvalidValue | None:
        """Return a fault that names the input with the wrong index; None if that is not certain."""
        named = _OUT_OF_BOUNDS.search(text)
        if named is None:
            return None
        # Imported here: only requests with wrong values need it.
        from ge_runtime.engines.analysis.gather_indices import index_inputs

        found = int(named["found"])
        places = {
            name: np.argwhere(inputs[name] == found)
            for name in index_inputs(self._file.model, named["node"] or "") & inputs.keys()
        }
        certain = {name: at[0].tolist() for name, at in places.items() if len(at)}
        if len(certain) != 1:
            return None
        ((name, at),) = certain.items()
        expected = f"at {at}, expected {named['least']} to {named['most']}"
        return InvalidValue.of(name, found, expected, f"onnxruntime: {text}")

    def _fault(self, text: str, *, no_memory: bool) -> RuntimeFault:
        return (OutOfMemory if no_memory else EngineFault)(text)

    def weights_bytes(self) -> int:
        sessions = 1 if self._small in (None, self._session) else 2
        return sessions * self._file.weights_bytes

    def device_io_bytes(self) -> int | None:
        return None if self.copies else 0

    def intermediates(self, shapes: Shapes) -> Intermediates | None:
        """See `Engine.intermediates`; needs the package onnx for shape inference."""
        return self._graph.intermediates(shapes) if self._graph else None

    def flops(self, shapes: Shapes) -> int | None:
        """See `Estimating.flops`; needs the package onnx for shape inference."""
        return self._graph.flops(shapes) if self._graph else None

    @property
    def unpadded(self) -> bool:
        """See `Unpadding.unpadded`."""
        return UNPADDED in self._session.get_modelmeta().custom_metadata_map

    def perturbed(self, seed: int) -> OnnxEngine:
        """See `Perturbable.perturbed`. The copy is not optimized and has another thread count."""
        content, external = nudged_weights(self._path, np.random.default_rng(seed))
        one = self._session.get_session_options().intra_op_num_threads == 1
        session = open_session(
            self._path,
            2 if one else 1,
            [_CPU_PROVIDER],
            execution=GraphExecution(optimization="ORT_DISABLE_ALL"),
            content=bytes(content),
            weights=external,
        )
        # The session may refer to the memory of the external weights.
        return OnnxEngine(session, self._signature, self._path, release=external.clear)

    @cached_property
    def _file(self) -> OnnxFile:
        return OnnxFile.read(self._path)

    @cached_property
    def _graph(self) -> OnnxGraph | None:
        return OnnxGraph.read(self._file)

    @property
    def arena(self) -> OnnxArena | None:
        return self._arena

    def close(self) -> None:
        if self._arena is not None:
            self._arena.release(self)
        self._session = self._small = None
        release, self._release = self._release, lambda: None
        release()


def signature_of(path: Path, session: Session) -> Signature:
    """Return the signature of the session's graph; `path` is for errors. Raises ArtifactFault."""
    return Signature(
        inputs=tuple(_tensor(path, value) for value in session.get_inputs()),
        outputs=tuple(_tensor(path, value) for value in session.get_outputs()),
    )


def dtype_of(name: str) -> DType | None:
    """Return the type that ONNX Runtime calls `name`, e.g. "tensor(float)"; None if unknown."""
    return _DTYPES.get(name)


def _tensor(path: Path, value: NodeArg) -> GraphTensor:
    dtype = dtype_of(value.type)
    if dtype is None:
        raise ArtifactFault(
            f"{path}: found '{value.name}' of type {value.type}, expected a tensor of a type "
            "that Triton has"
        )
    # ONNX Runtime returns an empty shape both for a scalar and for an unknown rank.
    dims = tuple(dim if isinstance(dim, int) else None for dim in value.shape)
    symbols = tuple(dim if isinstance(dim, str) else None for dim in value.shape)
    return GraphTensor(value.name, dtype, dims or None, symbols)


_CUDA_PROVIDER: Final = "CUDAExecutionProvider"
_CPU_PROVIDER: Final = "CPUExecutionProvider"
_INSTALL: Final = "pip install 'onnxruntime-gpu[cuda,cudnn]'"

_PRELOADING: Final = Lock()
"""Held while stdout is redirected: otherwise two threads could restore it in the wrong order."""

_CUDA_ENTRIES: Final = {
    # Weights are allocated outside of the arena, whose limit therefore applies to the workspace.
    "session.use_device_allocator_for_initializers": "1",
    "session.record_ep_graph_assignment_info": "1",
}
# fmt: off
_SIZE_OPERATORS: Final = frozenset([
    "Add", "And", "Cast", "Ceil", "Concat", "Constant", "ConstantOfShape", "Div", "Equal",
    "Expand", "Floor", "Gather", "Greater", "GreaterOrEqual", "Identity", "Less", "LessOrEqual",
    "Max", "Min", "Mod", "Mul", "Neg", "Not", "Or", "Range", "ReduceMax", "ReduceMin",
    "ReduceProd", "Reshape", "Shape", "Size", "Slice", "Split", "Squeeze", "Sub", "Unsqueeze",
    "Where",
])
# fmt: on
"""Operators with which graphs compute sizes.

ONNX Runtime executes nodes that depend only on tensor sizes on the CPU, where the sizes are
(fallback_cpu_capability.cc). So `session.disable_cpu_ep_fallback`, which refuses all nodes on the
CPU, would refuse most graphs of varying sizes.
"""


class OnnxCudaEngine(OnnxEngine):
    """A session on a GPU.

    ONNX Runtime copies inputs and outputs, and waits for each copy. Its arena grows on demand and
    keeps the memory: an execution of sizes that were executed before allocates nothing.
    """

    copies: ClassVar[bool] = True

    def __init__(
        self, gpu: Accelerator, session: Session, signature: Signature, path: Path
    ) -> None:
        """Initialize the engine; called by `open_on`."""
        super().__init__(session, signature, path, gpu.health)
        self._gpu = gpu
        self._cpu_operators = _cpu_operators(session)

    @classmethod
    def open_on(
        cls,
        gpu: Accelerator,
        path: Path,
        threads: int,
        outputs: Sequence[str] = (),
        workspace_bytes: int | None = None,
    ) -> OnnxCudaEngine:
        """Open the graph in `path` on the GPU.

        Args:
            gpu: The GPU.
            path: The .onnx file.
            threads: Maximum number of host threads of an execution.
            outputs: Ignored, because the graph's outputs have names.
            workspace_bytes: Limit of the arena; None: unlimited.

        Raises:
            NoDevice: A library is missing; the text says how to install it.
            ArtifactFault: The graph cannot be opened, or not be executed on the GPU.
        """
        onnxruntime = import_onnxruntime()
        _refuse_without(onnxruntime, gpu.name)
        with _PRELOADING, redirect_stdout(io.StringIO()):  # it prints the names of missing files
            onnxruntime.preload_dlls()  # NVIDIA's packages are not on the loader's search path
        provider = (_CUDA_PROVIDER, _options(gpu.index, workspace_bytes))
        session = open_session(path, threads, [provider], _CUDA_ENTRIES)
        if session.get_providers()[0] != _CUDA_PROVIDER:
            raise NoDevice(
                f"{gpu.name}: found an onnxruntime {onnxruntime.__version__} that cannot use it "
                f"({_lacking(onnxruntime)}), expected CUDA {onnxruntime.cuda_version} and cuDNN 9: "
                f"`{_INSTALL}`"
            )
        engine = cls(gpu, session, signature_of(path, session), path)
        unsupported = {
            op: count for op, count in engine._cpu_operators.items() if op not in _SIZE_OPERATORS
        }
        if unsupported:
            raise ArtifactFault(
                f"{path}: found {_counts(unsupported)} that CUDA does not support; expected nodes "
                "on the CPU only to compute sizes. Export the graph without them, or use a "
                "model.pt2 with engine: torch"
            )
        return engine

    @property
    def compiles_each_shape(self) -> bool:
        return False

    @property
    def unplanned(self) -> tuple[str, ...]:
        lines = [
            "device memory is allocated by ONNX Runtime's arena, including inputs and outputs: "
            "the plan's workspace is that of the graph's own results; additional memory of "
            "kernels is not planned",
            "growth of the arena while serving is not counted; it does not grow for sizes that "
            "were executed before",
        ]
        if self._cpu_operators:
            lines.append(f"executed on the CPU, to compute sizes: {_counts(self._cpu_operators)}")
        return tuple(lines)

    def run(self, inputs: Tensors, outputs: Mapping[str, Array | None]) -> dict[str, Array]:
        self._gpu.health.ensure_available()
        return super().run(inputs, outputs)

    def _fault(self, text: str, *, no_memory: bool) -> RuntimeFault:
        return self._gpu.fault(f"{self._gpu.name}: {text}", no_memory=no_memory)


def _options(index: int, workspace_bytes: int | None) -> dict[str, str]:
    options = {
        "device_id": str(index),
        # By default the arena grows to the next power of two.
        "arena_extend_strategy": "kSameAsRequested",
        # By default all algorithms are timed for each new set of sizes.
        "cudnn_conv_algo_search": "HEURISTIC",
        # FP32 is computed in FP32, not in TF32, so that results do not depend on the device.
        "use_tf32": "0",
    }
    if workspace_bytes is not None:
        options["gpu_mem_limit"] = str(workspace_bytes)
    return options


def _refuse_without(onnxruntime: Onnxruntime, device: str) -> None:
    if _CUDA_PROVIDER not in onnxruntime.get_available_providers():
        raise NoDevice(
            f"{device}: found onnxruntime {onnxruntime.__version__} without CUDA, expected "
            f"onnxruntime-gpu: `pip uninstall -y onnxruntime; {_INSTALL}`; both install one module"
        )
    if not hasattr(onnxruntime.InferenceSession, "get_provider_graph_assignment_info"):
        raise NoDevice(
            f"{device}: found onnxruntime-gpu {onnxruntime.__version__}, expected a version that "
            f"reports which nodes CUDA executes: `{_INSTALL} --upgrade`"
        )


def _lacking(onnxruntime: Onnxruntime) -> str:
    """Return the loader's message for the provider's library, which names the missing library."""
    folder = Path(onnxruntime.__file__).parent / "capi"
    try:
        for name in ("shared", "cuda"):
            file = folder / f"libonnxruntime_providers_{name}.so"
            ctypes.CDLL(str(file), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        return str(error)
    return "see its log"


def _cpu_operators(session: Session) -> Counter[str]:
    return Counter(
        node.op_type
        for part in session.get_provider_graph_assignment_info()
        if part.ep_name == _CPU_PROVIDER
        for node in part.get_nodes()
    )


def _counts(operators: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {operator}" for operator, count in sorted(operators.items()))
