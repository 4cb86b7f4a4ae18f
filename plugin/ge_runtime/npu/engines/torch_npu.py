"""The torch engine on a card: torch_npu runs a `model.pt2`, compiled by torchair or captured.

Written from the documentation of torch_npu and torchair, and never run on a card: the tests use
fakes of both.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, TypeAlias

from ge_runtime.devices import DeviceHealth, Watch, WatchedHost
from ge_runtime.engines.artifact import Artifact, only_graph
from ge_runtime.engines.backend import DeviceSettings, HostBackend
from ge_runtime.engines.base import Engine, Signature
from ge_runtime.engines.torch import (
    ExportedProgram,
    Results,
    Torch,
    TorchEngine,
    TorchTensor,
    import_torch_for,
    load_program,
    moved,
    moving_to,
    signature_of,
)
from ge_runtime.errors import ArtifactFault, EngineFault, NoDevice, OutOfMemory, RuntimeFault
from ge_runtime.npu.driver.cann_values import FailureKind, failure_kind
from ge_runtime.npu.driver.card import PROCESS_CARDS
from ge_runtime.npu.driver.installation import import_cann_module

# torchair's objects, which have no type stubs.
Torchair: TypeAlias = Any

_SET_ENV: Final = "run `source /usr/local/Ascend/cann/set_env.sh` before the server starts"

_FIELDS: Final[Mapping[str, tuple[str, Callable[[str], object]]]] = {
    "ge.aicoreNum": ("aicore_num", str),
    "ge.enableSingleStream": ("enable_single_stream", lambda text: text.lower() in ("1", "true")),
}
"""The equivalent field of torchair's `CompilerConfig.ge_config` and its parser, by option of GE.

torchair does not support other options.
"""

GE: Final = "ge"
CAPTURE: Final = "npugraph_ex"
"""The compilers: torchair creates graphs of GE, and torch_npu captures operators (aclgraph)."""

_CAPTURE_OPTIONS: Final = {"capture_error_mode": "thread_local"}
"""Options of npugraph_ex, with which allocations of other threads do not disturb a capture."""

_CODE: Final = re.compile(r"error code is (\d+)")
"""CANN's return code in a message of torch_npu."""

_NO_MEMORY: Final = "out of memory"

_UNSUPPORTED: Final = re.compile(r"Ascend310.*|Ascend910(A|B|Pro[AB]|PremiumA)?")
"""Chips that torchair does not support: its documentation names A2, A3 and 950."""

_CARD_OF_PROCESS: Final[list[int]] = []
"""The only card that torchair can use in this process; empty before its first use."""


@dataclass(frozen=True, slots=True)
class NpuTorch:
    """torch with a card of this process, and the compiler for the card."""

    torch: Torch
    torchair: Torchair | None
    """None for captures, which do not need torchair."""
    index: int
    health: DeviceHealth

    @classmethod
    def load(cls, index: int, compiler: str = GE) -> NpuTorch:
        """Import torch and a compiler for a card.

        Raises NoDevice, with the fix, if something is missing, and EngineLost for a lost card.
        """
        name = f"npu:{index}"
        health = PROCESS_CARDS.health(index)  # shared with engines that use pyACL
        health.ensure_available()
        # First, and without autoload: a torch_npu without CANN would break the import of torch.
        torch = import_torch_for(name, "pip install 'ge-runtime[torch]'")
        _import("torch_npu", name, f"`pip install torch_npu=={_release(torch)}`, then {_SET_ENV}")
        torchair = None
        if compiler == GE:
            torchair = _import(
                "torchair",
                name,
                "it is part of torch_npu and needs CANN's toolkit, packaging and protobuf>=3.13: "
                f"`pip install packaging protobuf`, then {_SET_ENV}",
            )
        elif CAPTURE not in torch._dynamo.list_backends(exclude_tags=()):
            raise NoDevice(
                f"{name}: found a torch_npu without {CAPTURE}, expected 7.3.0 or later: update "
                "torch_npu and CANN, or remove the parameter torch_compiler"
            )
        count = torch.npu.device_count() if torch.npu.is_available() else 0
        if index >= count:
            raise NoDevice(
                f"{name}: found {count} device(s), expected more than {index}: `npu-smi info` and "
                "ASCEND_RT_VISIBLE_DEVICES show which devices this process has"
            )
        chip = str(torch.npu.get_device_name(index))
        if _UNSUPPORTED.fullmatch(chip):
            raise NoDevice(
                f"{name}: found {chip} for engine torch, expected a chip that torchair supports, "
                "e.g. Ascend910B3: use a model.om, see `ge-runtime build`"
            )
        if index not in (_CARD_OF_PROCESS or [index]):
            raise NoDevice(
                f"{name}: found engine torch on npu:{_CARD_OF_PROCESS[0]} in this process, "
                "expected one card, as torchair supports one for each process: give each card "
                "its own model, or use model.om files"
            )
        _CARD_OF_PROCESS[:] = [index]
        return cls(torch, torchair, index, health)

    @property
    def device(self) -> str:
        """The device's name in torch."""
        return f"npu:{self.index}"

    def enter(self) -> None:
        """Make the device current in the calling thread. Raises EngineLost."""
        self.health.ensure_available()
        self.torch.npu.set_device(self.index)

    def allocations(self) -> int:
        """Return the number of device allocations of torch's caching allocator so far."""
        return int(self.torch.npu.memory_stats(self.index)["num_device_alloc"])

    def fault(self, error: Exception) -> RuntimeFault:
        """Return the fault of an error of torch_npu."""
        text = f"{self.device}: torch: {error}"
        code = _CODE.search(str(error))
        kind = failure_kind(int(code[1])) if code else None
        if kind is FailureKind.LOST:
            return self.health.mark_lost(text)
        no_memory = isinstance(error, self.torch.OutOfMemoryError) or _NO_MEMORY in str(error)
        if no_memory or kind is FailureKind.MEMORY:
            return OutOfMemory(text)
        return EngineFault(text)

    def compiler(self, options: Mapping[str, str]) -> dict[str, object]:
        """Return the arguments of `torch.compile` for the compiler, with options of GE.

        Raises ArtifactFault for options that the compiler does not support.
        """
        if self.torchair is None:
            if options:
                raise ArtifactFault(
                    f"{self.device}: found option {', '.join(options)} for torch_compiler "
                    f"{CAPTURE}, expected none, because GE does not compile the graph"
                )
            return {"backend": CAPTURE, "options": _CAPTURE_OPTIONS}
        config = self.torchair.CompilerConfig()
        for option, text in options.items():
            if option not in _FIELDS:
                raise ArtifactFault(
                    f"{self.device}: found option {option} for engine torch, expected one of: "
                    f"{', '.join(sorted(_FIELDS))}; a model.om supports other options"
                )
            field, value = _FIELDS[option]
            setattr(config.ge_config, field, value(text))
        # Keyword arguments, as in torchair's documentation.
        backend = self.torchair.get_npu_backend(compiler_config=config, custom_decompositions={})
        return {"backend": backend}


class TorchNpuEngine(TorchEngine):
    """A program on a card, with one graph of GE, or one capture, for each set of shapes.

    The program is compiled or captured as a whole, at the first execution of each set of shapes.

    Differences to the engine `om`:

    - No memory plan: torch's caching allocator and GE allocate the device's memory.
    - Allocations while serving: each execution allocates its inputs and results from torch's
      allocator; its new blocks are counted (`num_device_alloc`).
    - Several engines of a file have separate weights, and models do not share workspace.
    - A lost card is not detected if TORCH_NPU_COMPACT_ERROR_OUTPUT removes CANN's codes from
      messages.
    """

    def __init__(
        self,
        npu: NpuTorch,
        program: ExportedProgram,
        signature: Signature,
        compiler: Mapping[str, object],
        path: Path,
    ) -> None:
        """Move the program to the device; called by `open_on`."""
        # The graph is analysed with its weights on the host.
        threads = npu.torch.get_num_threads()
        super().__init__(npu.torch, program, signature, threads, path, npu.health)
        self._module = None  # not needed: `_call` creates a module for each set of shapes
        self._npu = npu
        npu.enter()
        self._program = moved(program, npu.device)
        self._compiler = compiler
        self._compiled: dict[tuple[tuple[int, ...], ...], Callable[..., Results]] = {}

    @classmethod
    def open_on(
        cls, npu: NpuTorch, path: Path, outputs: Sequence[str], options: Mapping[str, str]
    ) -> TorchNpuEngine:
        """Open the graph in `path`, with its weights on the card.

        Args:
            npu: torch with the card.
            path: The .pt2 file.
            outputs: See `TorchEngine.open`.
            options: Options of GE.

        Raises:
            ArtifactFault: The graph cannot be opened, or an option is not supported.
            OutOfMemory: The card has not enough memory.
            EngineLost: The card is lost.
        """
        compiler = npu.compiler(options)
        program = load_program(npu.torch, path)
        signature = signature_of(path, program, outputs)
        with moving_to(npu.device, path, npu.fault):
            return cls(npu, program, signature, compiler, path)

    @property
    def compiles_each_shape(self) -> bool:
        return True

    @property
    def unplanned(self) -> tuple[str, ...]:
        allocators, compiler = "torch's caching allocator and by GE", "GE"
        if self._npu.torchair is None:
            allocators, compiler = "torch's caching allocator, also for each capture", "torch"
        return (
            f"device memory is allocated by {allocators}: the plan's workspace has the size of the "
            f"graph's own results, and {compiler} may need a different size",
            "each execution allocates inputs and results from that allocator; its new blocks count "
            "as allocations while serving",
            "each engine has its own weights on the device",
        )

    def close(self) -> None:
        super().close()
        self._compiled.clear()
        self._program = None

    def _call(self, flat: Sequence[TorchTensor]) -> Results:
        self._npu.enter()  # torch's current device is per thread, and any thread may execute
        shapes = tuple(tuple(tensor.shape) for tensor in flat)
        compiled = self._compiled.get(shapes)
        if compiled is None:
            # A separate module for each set of shapes: torch.compile stops compiling a module after
            # eight sets, and checks all sets at each call.
            compiled = self._compiled[shapes] = self._torch.compile(
                self._program.module(), **self._compiler, dynamic=False, fullgraph=True
            )
        args, kwargs = self._arguments.unflatten([t.to(self._npu.device) for t in flat])
        with self._torch.no_grad():
            return compiled(*args, **kwargs)

    def _fault(self, error: Exception) -> RuntimeFault:
        fault = self._npu.fault(error)
        return super()._fault(error) if isinstance(fault, EngineFault) else fault


def _import(module: str, device: str, cure: str) -> Any:  # noqa: ANN401 - a module without types
    """Import a module. Raises NoDevice, with `cure`, if that fails."""
    try:
        return import_cann_module(module)
    except ImportError as error:
        raise NoDevice(
            f"{device}: `import {module}` failed ({error}), expected it to work: {cure}"
        ) from error


def _release(torch: Torch) -> str:
    """Return the version that torch_npu must have: "2.13.0" for torch "2.13.0+cpu"."""
    return str(torch.__version__).partition("+")[0]


class TorchNpuBackend(HostBackend):
    """A card that is used through torch_npu.

    Batches and responses are in ordinary host memory, so copies block the calling thread.
    """

    kind: ClassVar[str] = "npu"

    def __init__(self, device: int, options: Mapping[str, str], compiler: str = GE) -> None:
        """Open a card.

        Args:
            device: Number of the card.
            options: Options of GE.
            compiler: GE or CAPTURE.

        Raises:
            NoDevice: torch_npu or the card is missing; the text says how to fix it.
            EngineLost: The card was lost before.
        """
        self._npu = npu = NpuTorch.load(device, compiler)
        self._options = options
        hardware = str(npu.torch.npu.get_device_name(device))
        memory = _Memory(npu.device, Watch(npu.device, npu.allocations))
        super().__init__(npu.device, hardware, memory)

    @classmethod
    def for_device(cls, device: str, settings: DeviceSettings) -> TorchNpuBackend:
        """Open the backend of the device that config.pbtxt calls `device`."""
        index = int(device.partition(":")[2])
        return cls(index, settings.compiler_options, settings.torch_compiler)

    def open(
        self, artifacts: Sequence[Artifact], *, threads: int, outputs: Sequence[str]
    ) -> Engine:
        """See `DeviceBackend.open`. Accepts only one model.pt2."""
        path = only_graph(artifacts, self.name).path
        return TorchNpuEngine.open_on(self._npu, path, outputs, self._options)

    def close(self) -> None:
        """Free the memory, and torch's cached memory on the card unless it is lost."""
        super().close()
        if self._npu.health.lost is None:
            self._npu.torch.npu.empty_cache()


class _Memory(WatchedHost):
    """Host memory; torch's allocator on the card is watched."""

    kind: ClassVar[str] = "npu"
