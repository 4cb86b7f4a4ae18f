"""The simulated machine, as the environment describes it: ASCEND_SIMULATOR_*, read once.

Each field of `Settings` has a variable named after it: `hbm_mib` is ASCEND_SIMULATOR_HBM_MIB.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Literal

PREFIX: Final = "ASCEND_SIMULATOR_"
PYTHON: Final = PREFIX + "PYTHON"
"""No setting: the interpreter that the command atc is run with."""

VISIBLE_DEVICES: Final = "ASCEND_RT_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Settings:
    """What is simulated. Raises ValueError for what cannot be."""

    mode: Literal["strict", "lenient"] = "strict"
    """strict: what a device would not notice raises. lenient: it is counted and warned of."""

    soc: str = "AscendSimulator"
    """What acl.get_soc_name() answers and what a model file must be made for."""

    devices: int = 1
    hbm_mib: int = 32 * 1024
    """Memory of each device, MiB."""

    streams: int = 1984
    """Streams that a process may have on a device, those of contexts and models too; 2048 on 910,
    1024 on 310P, 512 on 310B."""

    model_streams: int = 1
    """Streams that a loaded model takes of these."""

    queue: int = 0
    """Tasks that a stream takes before one of them is done; 0 is no limit."""

    events: int = 65536
    """Events that a process may have on a device; 65535 on 910, 1023 on 310P."""

    launch_us: float = 0.0
    """Time that each execution takes beside its arithmetic, microseconds."""

    copy_gbps: float = 0.0
    """Rate of copies between host and device, 10^9 bytes per second; 0 is as fast as they go."""

    compile_ms: float = 0.0
    """Time that atc takes for a model, milliseconds."""

    load_ms: float = 0.0
    """Time that loading a model takes beside reading it, milliseconds."""

    threads: int = 1
    """Threads of the host that compute one execution."""

    size_slack: int = 0
    """Bytes by which a model's inputs and outputs are larger than their dims need, as compilers
    that pad make them."""

    seed: int | None = None
    """None: streams run behind on threads of their own. A number: nothing runs until the host
    waits, then in an order among streams that the number decides, the same each time."""

    faults: str = ""
    """What goes wrong, as `ascend_simulator.faults` reads it."""

    visible_devices: tuple[int, ...] | None = None
    """Devices that the process sees, renumbered from 0; None is all. From
    ASCEND_RT_VISIBLE_DEVICES."""

    def __post_init__(self) -> None:
        if self.mode not in ("strict", "lenient"):
            raise ValueError(f"mode: found '{self.mode}', expected strict or lenient")
        counts = (("devices", 0), ("hbm_mib", 1), ("streams", 1), ("events", 1), ("threads", 1))
        for name, least in counts:
            if getattr(self, name) < least:
                raise ValueError(f"{name}: found {getattr(self, name)}, expected {least} or more")
        rates = ("launch_us", "copy_gbps", "compile_ms", "load_ms", "size_slack")
        for name in (*rates, "model_streams", "queue"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name}: found {getattr(self, name)}, expected 0 or more")

    @property
    def device_ids(self) -> tuple[int, ...]:
        """Physical ids of the devices that the process sees; their places are its own ids."""
        present = range(self.devices)
        if self.visible_devices is None:
            return tuple(present)
        return tuple(device for device in self.visible_devices if device in present)

    @property
    def hbm_bytes(self) -> int:
        """Memory of each device, bytes."""
        return self.hbm_mib * 1024 * 1024


def _device_list(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(",") if number.strip())


_READERS: Final[dict[str, Callable[[str], Any]]] = {
    "str": str,
    "int": int,
    "float": float,
    "int | None": int,
    "Literal['strict', 'lenient']": str,
}


def from_environment(environment: Mapping[str, str] = os.environ) -> Settings:
    """The settings that `environment` describes.

    Raises ValueError naming each variable at fault in it, those with an unknown name too.
    """
    given: dict[str, Any] = {}
    problems = []
    readers = {
        PREFIX + field.name.upper(): (field.name, _READERS[str(field.type)])
        for field in fields(Settings)
        if field.name != "visible_devices"
    }
    readers[VISIBLE_DEVICES] = ("visible_devices", _device_list)
    for variable, text in sorted(environment.items()):
        if variable in readers:
            name, read = readers[variable]
            try:
                given[name] = read(text)
            except ValueError:
                problems.append(f"{variable}: found '{text}', expected a number")
        elif variable.startswith(PREFIX) and variable != PYTHON:
            problems.append(f"{variable}: found an unknown name, expected one of {sorted(readers)}")
    if problems:
        raise ValueError("; ".join(problems))
    return Settings(**given)
