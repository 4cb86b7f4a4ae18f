"""The torch engine on a card: `model.pt2`, compiled by torchair, executed by torch_npu.

Written from the documents of torch_npu and torchair, and never run on a card: tests hold it against
fakes of both.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, TypeAlias

from ge_runtime.devices import Watch, WatchedHost
from ge_runtime.devices.health import DeviceHealth
from ge_runtime.engines.artifact import Artifact, only_graph
from ge_runtime.engines.backend import DeviceSettings, HostBackend
from ge_runtime.engines.base import Engine, Signature
from ge_runtime.engines.torch import (
    ExportedProgram,
    Results,
    Torch,
    TorchEngine,
    TorchTensor,
    bringing_to,
    import_torch_for,
    load_program,
    moved,
    signature_of,
)
from ge_runtime.errors import ArtifactFault, EngineFault, NoDevice, OutOfMemory, RuntimeFault
from ge_runtime.npu.driver.card import PROCESS_CARDS
from ge_runtime.npu.driver.installation import import_cann_module
from ge_runtime.npu.driver.return_codes import FailureKind, failure_kind

# torchair's own objects, which come without types.
Torchair: TypeAlias = Any
Backend: TypeAlias = Any

_SET_ENV: Final = "run `source /usr/local/Ascend/cann/set_env.sh` before the server starts"

_FIELDS: Final[Mapping[str, tuple[str, Callable[[str], object]]]] = {
    "ge.aicoreNum": ("aicore_num", str),
    "ge.enableSingleStream": ("enable_single_stream", lambda text: text.lower() in ("1", "true")),
}
"""Option of GE: the field of torchair's `CompilerConfig.ge_config` that is the same, and its value.

torchair has no field for the others.
"""

_CODE: Final = re.compile(r"error code is (\d+)")
"""How torch_npu tells CANN's return code in a message."""

_NO_MEMORY: Final = "out of memory"


@dataclass(frozen=True, slots=True)
class NpuTorch:
    """torch with a card of this process, and the compiler for it."""

    torch: Torch
    torchair: Torchair
    index: int
    health: DeviceHealth

    @classmethod
    def load(cls, index: int) -> NpuTorch:
        """Raises NoDevice, with the cure, for what is missing; EngineLost for a lost card."""
        name = f"npu:{index}"
        health = PROCESS_CARDS.health(index)  # shared with pyACL's users: the card is one
        health.ensure_there()
        # torch first, and without its autoload: torch_npu without CANN would break its import.
        torch = import_torch_for(name, "pip install 'ge-runtime[torch]'")
        _import("torch_npu", name, f"`pip install torch_npu=={_release(torch)}`, then {_SET_ENV}")
        torchair = _import(
            "torchair",
            name,
            "it is part of torch_npu and needs CANN's toolkit, packaging and protobuf>=3.13: "
            f"`pip install packaging protobuf`, then {_SET_ENV}",
        )
        count = torch.npu.device_count() if torch.npu.is_available() else 0
        if index >= count:
            raise NoDevice(
                f"{name}: found {count} device(s), expected more than {index}: `npu-smi info` and "
                "ASCEND_RT_VISIBLE_DEVICES say which devices this process has"
            )
        return cls(torch, torchair, index, health)

    @property
    def device(self) -> str:
        """As torch calls it."""
        return f"npu:{self.index}"

    def enter(self) -> None:
        """Let the calling thread use the device. Raises EngineLost."""
        self.health.ensure_there()
        self.torch.npu.set_device(self.index)

    def allocations(self) -> int:
        """How often torch's caching allocator has asked the device for memory so far."""
        return int(self.torch.npu.memory_stats(self.index)["num_device_alloc"])

    def fault(self, error: Exception) -> RuntimeFault:
        """What an error of torch_npu means for whoever used the device."""
        text = f"{self.device}: torch: {error}"
        code = _CODE.search(str(error))
        kind = failure_kind(int(code[1])) if code else None
        if kind is FailureKind.LOST:
            return self.health.lose(text)
        short = isinstance(error, self.torch.OutOfMemoryError) or _NO_MEMORY in str(error)
        if short or kind is FailureKind.MEMORY:
            return OutOfMemory(text)
        return EngineFault(text)

    def backend(self, options: Mapping[str, str]) -> Backend:
        """The compiler, for `torch.compile`. options: of GE. Raises ArtifactFault for others."""
        config = self.torchair.CompilerConfig()
        for option, text in options.items():
            if option not in _FIELDS:
                raise ArtifactFault(
                    f"{self.device}: found option {option} for engine torch, expected one of: "
                    f"{', '.join(sorted(_FIELDS))}; a model.om can have others"
                )
            field, value = _FIELDS[option]
            setattr(config.ge_config, field, value(text))
        # By keyword, as torchair documents them.
        return self.torchair.get_npu_backend(compiler_config=config, custom_decompositions={})


class TorchNpuEngine(TorchEngine):
    """One GE graph for each set of shapes.

    A graph is compiled as a whole or not at all, at the first execution of its shapes.

    What it cannot promise, where the engine `om` does: memory of its own plan, as torch's caching
    allocator and GE share out the device's; no allocation while serving, as each execution has
    its inputs and results of that allocator, whose new blocks are counted (`num_device_alloc`);
    weights once for several engines of a file; workspace shared with other models. Nor that a lost
    card is noticed where TORCH_NPU_COMPACT_ERROR_OUTPUT takes CANN's codes out of messages.
    """

    def __init__(
        self, npu: NpuTorch, program: ExportedProgram, signature: Signature, backend: Backend
    ) -> None:
        """Made by `open_on`; brings the program to the device."""
        # The analysis of the graph is of its weights on the host.
        super().__init__(npu.torch, program, signature, npu.torch.get_num_threads(), npu.health)
        self._module = None  # on the host: each set of shapes has a module of its own, see `_call`
        self._npu = npu
        npu.enter()
        self._program = moved(program, npu.device)
        self._backend = backend
        self._compiled: dict[tuple[tuple[int, ...], ...], Callable[..., Results]] = {}

    @classmethod
    def open_on(
        cls, npu: NpuTorch, path: Path, outputs: Sequence[str], options: Mapping[str, str]
    ) -> TorchNpuEngine:
        """The graph in `path`, its weights on the card. options: of GE.

        outputs: as for `TorchEngine.open`. Raises ArtifactFault, OutOfMemory or EngineLost.
        """
        backend = npu.backend(options)
        program = load_program(npu.torch, path)
        signature = signature_of(path, program, outputs)
        with bringing_to(npu.device, path, npu.fault):
            return cls(npu, program, signature, backend)

    @property
    def compiles_each_shape(self) -> bool:
        return True

    @property
    def unplanned(self) -> tuple[str, ...]:
        return (
            "device memory is shared out by torch's caching allocator and by GE: workspace is what "
            "the graph's own results take, and GE's may be another",
            "each execution takes inputs and results of that allocator; new blocks of it count as "
            "allocations while serving",
            "weights are on the device once for each engine",
        )

    def close(self) -> None:
        super().close()
        self._compiled.clear()
        self._program = None

    def _call(self, flat: Sequence[TorchTensor]) -> Results:
        self._npu.enter()  # torch's current device is the thread's: executions come from any
        shapes = tuple(tuple(tensor.shape) for tensor in flat)
        compiled = self._compiled.get(shapes)
        if compiled is None:
            # Of a module of its own: torch.compile gives up on code that is compiled for more
            # than eight sets of shapes, and looks through all of them at each call.
            compiled = self._compiled[shapes] = self._torch.compile(
                self._program.module(), backend=self._backend, dynamic=False, fullgraph=True
            )
        args, kwargs = self._arguments.unflatten([t.to(self._npu.device) for t in flat])
        with self._torch.no_grad():
            return compiled(*args, **kwargs)

    def _fault(self, error: Exception) -> RuntimeFault:
        fault = self._npu.fault(error)
        return super()._fault(error) if isinstance(fault, EngineFault) else fault


def _import(module: str, device: str, cure: str) -> Any:  # noqa: ANN401 - a module without types
    """The module. Raises NoDevice, with the cure."""
    try:
        return import_cann_module(module)
    except ImportError as error:
        raise NoDevice(
            f"{device}: `import {module}` failed ({error}), expected it to work: {cure}"
        ) from error


def _release(torch: Torch) -> str:
    """The version that torch_npu must have, too: "2.13.0" of "2.13.0+cpu"."""
    return str(torch.__version__).partition("+")[0]


class TorchNpuBackend(HostBackend):
    """A card without a driver of ours: torch_npu has its own.

    Batches and answers lie in ordinary memory of the host. Copies from there block the calling
    thread.
    """

    kind: ClassVar[str] = "npu"

    def __init__(self, device: int, options: Mapping[str, str]) -> None:
        """device: its number. options: of GE, for compiling.

        Raises NoDevice, with the cure, where torch_npu or the card is missing, and EngineLost if it
        was lost before.
        """
        self._npu = npu = NpuTorch.load(device)
        self._options = options
        hardware = str(npu.torch.npu.get_device_name(device))
        memory = _Memory(npu.device, Watch(npu.device, npu.allocations))
        super().__init__(npu.device, hardware, memory)

    @classmethod
    def for_device(cls, device: str, settings: DeviceSettings) -> TorchNpuBackend:
        """The backend of the device that config.pbtxt calls `device`."""
        return cls(int(device.partition(":")[2]), settings.compiler_options)

    def open(
        self, artifacts: Sequence[Artifact], *, threads: int, outputs: Sequence[str]
    ) -> Engine:
        """One model.pt2: stages are not handed over on the card."""
        path = only_graph(artifacts, self.name).path
        return TorchNpuEngine.open_on(self._npu, path, outputs, self._options)

    def close(self) -> None:
        """What torch has cached of the card goes back to it, unless that is lost."""
        super().close()
        if self._npu.health.lost is None:
            self._npu.torch.npu.empty_cache()


class _Memory(WatchedHost):
    """The host's memory; torch's allocator on the card is watched."""

    kind: ClassVar[str] = "npu"
