"""The ONNX Runtime engine on a GPU: `model.onnx`, by the CUDA execution provider.

What it says and does without a GPU, or without CUDA's libraries, was tried; nothing was ever
executed on a GPU.
"""

from __future__ import annotations

import ctypes
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from threading import Lock
from typing import ClassVar, Final

from ge_runtime.cuda.gpu import Gpu
from ge_runtime.engines.base import Signature
from ge_runtime.engines.onnx import (
    OnnxEngine,
    Onnxruntime,
    Session,
    import_onnxruntime,
    open_session,
    signature_of,
)
from ge_runtime.errors import ArtifactFault, NoDevice, RuntimeFault
from ge_runtime.specs import Array, Tensors

_PROVIDER: Final = "CUDAExecutionProvider"
_HOST: Final = "CPUExecutionProvider"
_INSTALL: Final = "pip install 'onnxruntime-gpu[cuda,cudnn]'"

_PRELOADING: Final = Lock()
"""Two threads that redirect what is printed would leave it redirected."""

_ENTRIES: Final = {
    # Weights lie beside the arena, so that its limit is one of the workspace.
    "session.use_device_allocator_for_initializers": "1",
    "session.record_ep_graph_assignment_info": "1",
}
# fmt: off
_OF_SIZES: Final = frozenset([
    "Add", "And", "Cast", "Ceil", "Concat", "Constant", "ConstantOfShape", "Div", "Equal",
    "Expand", "Floor", "Gather", "Greater", "GreaterOrEqual", "Identity", "Less", "LessOrEqual",
    "Max", "Min", "Mod", "Mul", "Neg", "Not", "Or", "Range", "ReduceMax", "ReduceMin",
    "ReduceProd", "Reshape", "Shape", "Size", "Slice", "Split", "Squeeze", "Sub", "Unsqueeze",
    "Where",
])
# fmt: on
"""Operators that graphs compute sizes with.

What takes the size of a tensor, and what is computed of that alone, ONNX Runtime leaves to the CPU,
where sizes are (fallback_cpu_capability.cc). So `session.disable_cpu_ep_fallback`, which refuses
every node there, would refuse most graphs of varying sizes.
"""


class OnnxCudaEngine(OnnxEngine):
    """See `base.Engine` and `base.Limited`.

    ONNX Runtime copies inputs and outputs itself, and waits for each copy. Its arena grows by what
    an execution lacks, and keeps it: sizes that were executed once find all they need.
    """

    copies: ClassVar[bool] = True

    def __init__(self, gpu: Gpu, session: Session, signature: Signature, path: Path) -> None:
        """Made by `open_on`."""
        super().__init__(session, signature, path)
        self._gpu = gpu
        self._on_host = _on_host(session)

    @classmethod
    def open_on(
        cls,
        gpu: Gpu,
        path: Path,
        threads: int,
        outputs: Sequence[str] = (),
        workspace_bytes: int | None = None,
    ) -> OnnxCudaEngine:
        """The graph in `path` on the GPU. workspace_bytes: the limit of the arena, if there is one.

        Raises NoDevice, with the cure, for what is missing, or ArtifactFault.
        """
        onnxruntime = import_onnxruntime()
        _refuse_without(onnxruntime, gpu.name)
        with _PRELOADING, redirect_stdout(io.StringIO()):  # it prints what it does not find
            onnxruntime.preload_dlls()  # those of NVIDIA's packages, which nobody else finds
        provider = (_PROVIDER, _options(gpu.index, workspace_bytes))
        session = open_session(path, threads, [provider], _ENTRIES)
        if session.get_providers()[0] != _PROVIDER:
            raise NoDevice(
                f"{gpu.name}: found an onnxruntime {onnxruntime.__version__} that cannot use it "
                f"({_lacking(onnxruntime)}), expected CUDA {onnxruntime.cuda_version} and cuDNN 9: "
                f"`{_INSTALL}`"
            )
        engine = cls(gpu, session, signature_of(path, session), path)
        strange = {op: count for op, count in engine._on_host.items() if op not in _OF_SIZES}
        if strange:
            raise ArtifactFault(
                f"{path}: found {_told(strange)} that CUDA does not execute, and the CPU would; "
                "expected such nodes only to compute sizes: export the graph without them, or "
                "give the model a model.pt2 and engine: torch"
            )
        return engine

    @property
    def lost(self) -> bool:
        """With the GPU, whoever found that out."""
        return self._gpu.health.lost is not None

    @property
    def compiles_each_shape(self) -> bool:
        return False

    @property
    def unplanned(self) -> tuple[str, ...]:
        lines = [
            "device memory is shared out by ONNX Runtime's arena, inputs and outputs among it: "
            "workspace is what the graph's own results take, and what kernels take besides is in "
            "no plan",
            "if the arena grows while serving, nobody counts it; it does not for sizes that were "
            "executed before",
        ]
        if self._on_host:
            lines.append(f"executed on the CPU, to compute sizes: {_told(self._on_host)}")
        return tuple(lines)

    def run(self, inputs: Tensors, outputs: Mapping[str, Array | None]) -> dict[str, Array]:
        self._gpu.health.ensure_there()
        return super().run(inputs, outputs)

    def _fault(self, text: str, *, short: bool) -> RuntimeFault:
        return self._gpu.fault(f"{self._gpu.name}: {text}", short=short)


def _options(index: int, workspace_bytes: int | None) -> dict[str, str]:
    """Of the provider, as ONNX Runtime documents them."""
    options = {
        "device_id": str(index),
        # By default the arena grows to the next power of two.
        "arena_extend_strategy": "kSameAsRequested",
        # By default each new set of sizes is timed with every algorithm there is.
        "cudnn_conv_algo_search": "HEURISTIC",
        # FP32 stays FP32, so that answers do not depend on the device's own shorthand.
        "use_tf32": "0",
    }
    if workspace_bytes is not None:
        options["gpu_mem_limit"] = str(workspace_bytes)
    return options


def _refuse_without(onnxruntime: Onnxruntime, device: str) -> None:
    if _PROVIDER not in onnxruntime.get_available_providers():
        raise NoDevice(
            f"{device}: found onnxruntime {onnxruntime.__version__} without CUDA, expected "
            f"onnxruntime-gpu: `pip uninstall -y onnxruntime; {_INSTALL}`: both are one package"
        )
    if not hasattr(onnxruntime.InferenceSession, "get_provider_graph_assignment_info"):
        raise NoDevice(
            f"{device}: found onnxruntime-gpu {onnxruntime.__version__}, expected one that tells "
            f"which nodes CUDA executes: `{_INSTALL} --upgrade`"
        )


def _lacking(onnxruntime: Onnxruntime) -> str:
    """What the provider's own library lacks, in the words of the system."""
    folder = Path(onnxruntime.__file__).parent / "capi"
    try:
        for name in ("shared", "cuda"):
            file = folder / f"libonnxruntime_providers_{name}.so"
            ctypes.CDLL(str(file), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        return str(error)
    return "its log says why"


def _on_host(session: Session) -> Counter[str]:
    """The operators that are executed on the CPU: how often each."""
    return Counter(
        node.op_type
        for part in session.get_provider_graph_assignment_info()
        if part.ep_name == _HOST
        for node in part.get_nodes()
    )


def _told(operators: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {operator}" for operator, count in sorted(operators.items()))
