"""The table of engines, device backends and placements: names, and where their classes are.

Classes are written as "module:Class" and imported when they are chosen, so that a model on the CPU
loads no code of other devices. Another package registers its engine by an entry point of the group
`ge_runtime.engines`, whose object is an `EngineEntry`, or several of them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, Final

_log = logging.getLogger(__name__)

ENTRY_POINTS: Final = "ge_runtime.engines"
"""The group in which other packages register their engines."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """A package that an engine needs."""

    name: str
    """For people."""
    install: str = ""
    """The command that brings it; by default `pip install` of its name."""
    module: str = ""
    """What Python imports, where that is not the name."""
    file: str = ""
    """A path in the package, where builds of it for other devices lack something."""

    @property
    def cure(self) -> str:
        """The command that brings it."""
        return self.install or f"pip install {self.name}"


@dataclass(frozen=True, slots=True)
class EngineEntry:
    """An engine on one kind of device."""

    name: str
    """As the parameter 'engine' has it."""
    device_kind: str
    """A key of DEVICES."""
    suffix: str
    """Of its artifacts."""
    engine: str
    """Its class, an `engines.base.Engine`. How it is opened, its device's backend tells."""
    requires: Requirement
    backend: str = ""
    """The class of the device backend that opens it, where that is not the device's own."""
    preferred_because: str = ""
    """Why it comes before others of its device, where that is told."""
    experimental: bool = False
    """Whether it was never run on such a device."""
    by_chip: bool = False
    """Whether artifacts for several chips may lie side by side: see `artifact.chip_file`."""

    @property
    def backend_class(self) -> str:
        """Where the class of its device backend is."""
        return self.backend or DEVICES[self.device_kind].backend


@dataclass(frozen=True, slots=True)
class DeviceEntry:
    """A kind of device."""

    backend: str
    """The class of its device backend."""
    build: str
    """The command that builds its artifacts."""
    prepare: str = ""
    """A function to call before its packages are looked for."""


DEVICES: Final[Mapping[str, DeviceEntry]] = {
    "cpu": DeviceEntry("ge_runtime.engines.backend:HostBackend", "make models"),
    "cuda": DeviceEntry("ge_runtime.engines.cuda_backend:CudaBackend", "make models"),
    "npu": DeviceEntry(
        "ge_runtime.npu.engines.ascend_backend:AscendBackend",
        "ge-runtime build",
        prepare="ge_runtime.npu.driver.installation:apply_pythonpath",
    ),
}
"""Kind of device, as the parameter 'devices' has it before the colon."""

PLACEMENTS: Final[Mapping[str, str]] = {"service": "ge_runtime.npu.service.backend:ServiceBackend"}
"""The parameter 'placement': the class of a device backend other than the device's own."""

_SET_ENV: Final = "source /usr/local/Ascend/cann/set_env.sh"

_BUILT_IN: Final = (
    # In each device's order of preference. onnxruntime leads: it is a fraction of torch's size and
    # writes results where they are planned. On an Ascend card om leads: of it alone all memory is
    # planned before a byte is allocated.
    EngineEntry(
        name="onnxruntime",
        device_kind="cpu",
        suffix=".onnx",
        engine="ge_runtime.engines.onnx:OnnxEngine",
        requires=Requirement("onnxruntime"),
    ),
    EngineEntry(
        name="torch",
        device_kind="cpu",
        suffix=".pt2",
        engine="ge_runtime.engines.torch:TorchEngine",
        requires=Requirement("torch"),
    ),
    EngineEntry(
        name="onnxruntime",
        device_kind="cuda",
        suffix=".onnx",
        engine="ge_runtime.engines.onnx:OnnxCudaEngine",
        requires=Requirement(
            "onnxruntime-gpu",
            "pip uninstall -y onnxruntime; pip install 'onnxruntime-gpu[cuda,cudnn]'",
            module="onnxruntime",
            file="capi/libonnxruntime_providers_cuda.so",
        ),
    ),
    EngineEntry(
        name="torch",
        device_kind="cuda",
        suffix=".pt2",
        engine="ge_runtime.engines.torch_cuda:TorchCudaEngine",
        requires=Requirement(
            "torch for CUDA",
            "pip uninstall -y torch; pip install torch",
            module="torch",
            file="lib/libtorch_cuda.so",
        ),
    ),
    EngineEntry(
        name="om",
        device_kind="npu",
        suffix=".om",
        engine="ge_runtime.npu.engines.om:OmEngine",
        requires=Requirement("acl", _SET_ENV),
        preferred_because="all its memory is planned",
        by_chip=True,
    ),
    EngineEntry(
        name="torch",
        device_kind="npu",
        suffix=".pt2",
        engine="ge_runtime.npu.engines.torch_npu:TorchNpuEngine",
        requires=Requirement("torch_npu"),
        backend="ge_runtime.npu.engines.torch_npu:TorchNpuBackend",
        experimental=True,
    ),
    EngineEntry(
        name="ge_session",
        device_kind="npu",
        suffix=".air",
        engine="ge_runtime.npu.engines.ge_session:GeSessionEngine",
        requires=Requirement("ge", _SET_ENV),
        experimental=True,
    ),
)


def engine_entries() -> tuple[EngineEntry, ...]:
    """All engines, those of each device in order of preference; those of other packages last."""
    return (*_BUILT_IN, *_registered())


def engine_names() -> tuple[str, ...]:
    """The engines' names, each once."""
    return tuple(dict.fromkeys(entry.name for entry in engine_entries()))


def suffixes() -> dict[str, str]:
    """Engine: its artifacts' suffix."""
    return {entry.name: entry.suffix for entry in engine_entries()}


def engines_on(device_kind: str) -> dict[str, EngineEntry]:
    """The engines of a kind of device by name, the preferred one first."""
    return {entry.name: entry for entry in engine_entries() if entry.device_kind == device_kind}


def load(target: str) -> Any:  # noqa: ANN401 - whatever has that name
    """The class or function "module:name". Imports the module."""
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)


def prepare(device_kind: str) -> None:
    """Has what a kind of device needs before its packages are looked for."""
    function = DEVICES[device_kind].prepare
    if function:
        load(function)()


@cache
def _registered() -> tuple[EngineEntry, ...]:
    """The engines of other packages. Read once: it takes milliseconds with many packages."""
    # Imported late: it takes tens of milliseconds, which only loads of models should cost.
    from importlib.metadata import entry_points

    entries: list[EngineEntry] = []
    taken = {(entry.name, entry.device_kind) for entry in _BUILT_IN}
    for point in entry_points(group=ENTRY_POINTS):
        try:
            found = point.load()
            for entry in [found] if isinstance(found, EngineEntry) else list(found):
                if (entry.name, entry.device_kind) in taken or entry.device_kind not in DEVICES:
                    raise ValueError(
                        f"found engine {entry.name} for {entry.device_kind}, expected a name of "
                        f"its own, for one of: {', '.join(DEVICES)}"
                    )
                taken.add((entry.name, entry.device_kind))
                entries.append(entry)
        # Whatever another package raises: models that do not use its engine are served.
        except Exception as error:
            _log.warning("entry point '%s' of %s is not used: %s", point.name, ENTRY_POINTS, error)
    return tuple(entries)
