"""The table of engines, device backends and placements: their names and classes.

Classes are written as "module:Class" and imported when they are chosen, so that a model on the CPU
loads no code for other devices. Another package registers its engine with an entry point of the
group `ge_runtime.engines`. The object of the entry point is one `EngineEntry` or several.
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
    """The name in messages."""
    install: str = ""
    """The command that installs the package; by default `pip install NAME`."""
    module: str = ""
    """The module to import, if it is not called `name`."""
    file: str = ""
    """A path in the package that is missing in builds for other devices."""

    @property
    def cure(self) -> str:
        """The command that installs the package."""
        return self.install or f"pip install {self.name}"


@dataclass(frozen=True, slots=True)
class EngineEntry:
    """An engine on one kind of device."""

    name: str
    """The value of the parameter 'engine'."""
    device_kind: str
    """A key of DEVICES."""
    suffix: str
    """The suffix of its artifacts."""
    engine: str
    """The class, an `engines.base.Engine`, which the backend of its device opens."""
    requires: Requirement
    backend: str = ""
    """The class of the device backend that opens the engine, if it is not that of `device_kind`."""
    preferred_because: str = ""
    """The reason why it precedes other engines of its device, for the load report."""
    experimental: bool = False
    """True if it was never run on such a device."""
    by_chip: bool = False
    """True if there may be an artifact for each of several chips: see `artifact.chip_file`."""

    @property
    def backend_class(self) -> str:
        """The class of the device backend that opens the engine."""
        return self.backend or DEVICES[self.device_kind].backend


@dataclass(frozen=True, slots=True)
class DeviceEntry:
    """A kind of device."""

    backend: str
    """The class of its device backend."""
    build: str
    """The command that builds its artifacts."""
    prepare: str = ""
    """A function to call before the packages of engines on this kind of device are searched."""


DEVICES: Final[Mapping[str, DeviceEntry]] = {
    "cpu": DeviceEntry("ge_runtime.engines.backend:HostBackend", "make models"),
    "cuda": DeviceEntry("ge_runtime.engines.cuda_backend:CudaBackend", "make models"),
    "npu": DeviceEntry(
        "ge_runtime.npu.engines.ascend_backend:AscendBackend",
        "ge-runtime build",
        prepare="ge_runtime.npu.driver.installation:apply_pythonpath",
    ),
}
"""Kinds of devices by name: the part of the parameter 'devices' before the colon."""

PLACEMENTS: Final[Mapping[str, str]] = {"service": "ge_runtime.npu.service.backend:ServiceBackend"}
"""Device backends that replace the device's own, by the value of the parameter 'placement'."""

_SET_ENV: Final = "source /usr/local/Ascend/cann/set_env.sh"
_ENGINES: Final = "ge_runtime.engines"
_NPU_ENGINES: Final = "ge_runtime.npu.engines"
_ONNX_CUDA: Final = Requirement(
    "onnxruntime-gpu",
    "pip uninstall -y onnxruntime; pip install 'onnxruntime-gpu[cuda,cudnn]'",
    module="onnxruntime",
    file="capi/libonnxruntime_providers_cuda.so",
)
_TORCH_CUDA: Final = Requirement(
    "torch for CUDA",
    "pip uninstall -y torch; pip install torch",
    module="torch",
    file="lib/libtorch_cuda.so",
)

_BUILT_IN: Final = (
    # In order of preference for each device. onnxruntime is first, as it is much smaller than torch
    # and writes results to planned memory. On an Ascend card om is first, as it is the only engine
    # whose memory is planned completely before anything is allocated.
    EngineEntry(
        "onnxruntime", "cpu", ".onnx", f"{_ENGINES}.onnx:OnnxEngine", Requirement("onnxruntime")
    ),
    EngineEntry("torch", "cpu", ".pt2", f"{_ENGINES}.torch:TorchEngine", Requirement("torch")),
    EngineEntry("onnxruntime", "cuda", ".onnx", f"{_ENGINES}.onnx:OnnxCudaEngine", _ONNX_CUDA),
    EngineEntry("torch", "cuda", ".pt2", f"{_ENGINES}.torch_cuda:TorchCudaEngine", _TORCH_CUDA),
    EngineEntry(
        "om",
        "npu",
        ".om",
        f"{_NPU_ENGINES}.om:OmEngine",
        Requirement("acl", _SET_ENV),
        preferred_because="all its memory is planned",
        by_chip=True,
    ),
    EngineEntry(
        "torch",
        "npu",
        ".pt2",
        f"{_NPU_ENGINES}.torch_npu:TorchNpuEngine",
        requires=Requirement("torch_npu"),
        backend=f"{_NPU_ENGINES}.torch_npu:TorchNpuBackend",
        experimental=True,
    ),
    EngineEntry(
        "ge_session",
        "npu",
        ".air",
        f"{_NPU_ENGINES}.ge_session:GeSessionEngine",
        requires=Requirement("ge", _SET_ENV),
        experimental=True,
    ),
)


def engine_entries() -> tuple[EngineEntry, ...]:
    """Return all engines, for each device in order of preference, those of other packages last."""
    return (*_BUILT_IN, *_registered())


def engine_names() -> tuple[str, ...]:
    """Return the engines' names, each once."""
    return tuple(dict.fromkeys(entry.name for entry in engine_entries()))


def suffixes() -> dict[str, str]:
    """Return the suffix of each engine's artifacts, by engine."""
    return {entry.name: entry.suffix for entry in engine_entries()}


def engines_on(device_kind: str) -> dict[str, EngineEntry]:
    """Return the engines of a kind of device by name, the preferred one first."""
    return {entry.name: entry for entry in engine_entries() if entry.device_kind == device_kind}


def load(target: str) -> Any:  # noqa: ANN401 - any class or function
    """Import and return the class or function "module:name"."""
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)


def prepare(device_kind: str) -> None:
    """Prepare this process for a kind of device, before its packages are searched."""
    function = DEVICES[device_kind].prepare
    if function:
        load(function)()


@cache
def _registered() -> tuple[EngineEntry, ...]:
    """Return the engines of other packages. Cached, as it takes milliseconds with many packages."""
    # Imported here, as it takes tens of milliseconds, which only loads of models should cost.
    from importlib.metadata import entry_points

    entries: list[EngineEntry] = []
    taken = {(entry.name, entry.device_kind) for entry in _BUILT_IN}
    for point in entry_points(group=ENTRY_POINTS):
        try:
            found = point.load()
            for entry in [found] if isinstance(found, EngineEntry) else list(found):
                if (entry.name, entry.device_kind) in taken or entry.device_kind not in DEVICES:
                    raise ValueError(
                        f"found engine {entry.name} for {entry.device_kind}, expected a name that "
                        f"no other engine has, and one of: {', '.join(DEVICES)}"
                    )
                taken.add((entry.name, entry.device_kind))
                entries.append(entry)
        # Any exception of another package: models that do not use its engine must still load.
        except Exception as error:
            _log.warning("entry point '%s' of %s is ignored: %s", point.name, ENTRY_POINTS, error)
    return tuple(entries)
