"""The settings of the simulated machine, read once from ASCEND_SIMULATOR_* variables.

Each field of `Settings` has a variable named after it: `hbm_mib` is ASCEND_SIMULATOR_HBM_MIB.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise, takewhile
from typing import Any, Final, Literal, NamedTuple

from ascend_simulator.faults import EXPECTED, first_invalid
from ascend_simulator.violations import Mode

PREFIX: Final = "ASCEND_SIMULATOR_"
PYTHON: Final = PREFIX + "PYTHON"
"""The interpreter that runs the command atc. This variable is not a setting."""

VISIBLE_DEVICES: Final = "ASCEND_RT_VISIBLE_DEVICES"


class _Form(NamedTuple):
    """The format of a setting."""

    read: Callable[[str], Any]
    """Parse a text; raises ValueError."""
    wrong: Callable[[Any], object]
    """Return the invalid part of a value; None if it is valid."""
    expected: str

    def problem(self, value: object) -> str | None:
        """Return the error text for the value; None if it is valid."""
        wrong = self.wrong(value)
        return None if wrong is None else self.found(wrong)

    def found(self, wrong: object) -> str:
        """Return the error text for an invalid value or part."""
        return f"found '{wrong}', expected {self.expected}"


def _either(*words: str) -> _Form:
    expected = f"{', '.join(words[:-1])} or {words[-1]}"
    return _Form(str, lambda word: None if word in words else word, expected)


def _whole(least: int, example: int) -> _Form:
    expected = f"a whole number of at least {least}, e.g. {example}"
    return _Form(int, lambda value: None if value >= least else value, expected)


def _amount(example: float) -> _Form:
    expected = f"a number of at least 0, e.g. {example:g}"
    return _Form(float, lambda value: None if 0 <= value < math.inf else value, expected)


def _device_list(text: str) -> tuple[int, ...]:
    """Read numbers up to the first invalid character, as CANN does."""
    numbers = re.split(r"\s", text, maxsplit=1)[0].split(",")
    return tuple(map(int, takewhile(str.isdecimal, numbers)))


def _nothing(value: object) -> None:
    """Accept any value."""


_VISIBLE: Final = "visible_devices"
_FORMS: Final[Mapping[str, _Form]] = {
    "mode": _either("strict", "lenient", "report"),
    "exit_code": _Form(int, lambda code: None if 0 <= code <= 255 else code, "0 to 255, e.g. 23"),
    "soc": _Form(str, lambda name: None if name else name, "a chip, e.g. Ascend910B3"),
    "run_mode": _either("host", "device"),
    "devices": _whole(0, 2),
    "hbm_mib": _whole(1, 65536),
    "streams": _whole(1, 1024),
    "model_streams": _whole(0, 2),
    "queue": _whole(0, 1024),
    "events": _whole(1, 1023),
    "launch_us": _amount(100),
    "copy_gbps": _amount(20),
    "compile_ms": _amount(500),
    "load_ms": _amount(500),
    "threads": _whole(1, 2),
    "size_slack": _whole(0, 32),
    "timeline": _whole(0, 1000),
    "seed": _Form(int, _nothing, "a whole number, e.g. 1"),
    "faults": _Form(str, first_invalid, EXPECTED),
    _VISIBLE: _Form(_device_list, _nothing, "numbers of devices, e.g. 0,2"),
}
"""The format of each field of Settings."""


@dataclass(frozen=True)
class Settings:
    """The simulated machine. Raises ValueError for invalid values."""

    mode: Mode = "strict"
    """strict: a violation raises. lenient: it warns. report: only the final report has it."""

    exit_code: int = 0
    """The program's exit code if a rule was broken; 0 keeps the program's own exit code."""

    soc: str = "AscendSimulator"
    """The result of acl.get_soc_name(), and the chip that a model file must be made for."""

    run_mode: Literal["host", "device"] = "host"
    """device: the program runs on the board itself (310B as RC), which has one memory."""

    devices: int = 1
    hbm_mib: int = 32 * 1024
    """Memory of each device, MiB."""

    streams: int = 1984
    """Maximum streams of a process on a device, including those of contexts and models.

    2048 on 910, 1024 on 310P, 512 on 310B.
    """

    model_streams: int = 1
    """Streams that a loaded model uses; they count towards `streams`."""

    queue: int = 0
    """Maximum pending tasks of a stream; 0 means no limit."""

    events: int = 65536
    """Maximum events of a process on a device; 65535 on 910, 1023 on 310P."""

    launch_us: float = 0.0
    """Time of each execution in addition to its computation, microseconds."""

    copy_gbps: float = 0.0
    """Rate of copies between host and device, 10^9 bytes per second; 0 means unlimited."""

    compile_ms: float = 0.0
    """Time of a run of atc, milliseconds."""

    load_ms: float = 0.0
    """Time of loading a model in addition to reading it, milliseconds."""

    threads: int = 1
    """Host threads that compute one execution."""

    size_slack: int = 0
    """Bytes by which inputs and outputs are larger than their elements, like ATC's padding."""

    timeline: int = 0
    """Number of latest tasks that `report` lists with their times."""

    seed: int | None = None
    """Order of tasks. None: each stream runs asynchronously on its own thread.

    A number: tasks run only while the host waits; the number determines the order among streams.
    """

    faults: str = ""
    """Injected faults: a plan in the format of `ascend_simulator.faults`."""

    visible_devices: tuple[int, ...] | None = None
    """Devices that the process sees, renumbered from 0; None means all.

    Set by ASCEND_RT_VISIBLE_DEVICES. As in CANN (runtime.cc), the list ends at the first device
    that does not exist, and no device is visible if the list is not ascending.
    """

    def __post_init__(self) -> None:
        problems = [
            f"{name}: {problem}"
            for name, form in _FORMS.items()
            if (problem := form.problem(getattr(self, name)))
        ]
        if problems:
            raise ValueError("; ".join(problems))

    @property
    def device_ids(self) -> tuple[int, ...]:
        """Physical ids of the devices that the process sees, in the order of the process's ids."""
        present = range(self.devices)
        if self.visible_devices is None:
            return tuple(present)
        visible = tuple(takewhile(present.__contains__, self.visible_devices))
        return visible if all(a < b for a, b in pairwise(visible)) else ()

    @property
    def one_memory(self) -> bool:
        """True if host and device share one memory."""
        return self.run_mode == "device"

    @property
    def hbm_bytes(self) -> int:
        """Memory of each device, bytes."""
        return self.hbm_mib * 1024 * 1024


def from_environment(environment: Mapping[str, str] = os.environ) -> Settings:
    """Return the settings in `environment`.

    Raises a ValueError that names each invalid or unknown variable.
    """
    given: dict[str, Any] = {}
    problems = []
    names = {PREFIX + name.upper(): name for name in _FORMS if name != _VISIBLE}
    names[VISIBLE_DEVICES] = _VISIBLE
    for variable, text in sorted(environment.items()):
        if variable in names:
            form = _FORMS[names[variable]]
            try:
                given[names[variable]] = value = form.read(text)
                problem = form.problem(value)
            except ValueError:
                problem = form.found(text)
            if problem:
                problems.append(f"{variable}: {problem}")
        elif variable.startswith(PREFIX) and variable != PYTHON:
            problems.append(f"{variable}: unknown name, expected one of {sorted(names)}")
    if problems:
        raise ValueError("; ".join(problems))
    return Settings(**given)


def has_hbm(soc: str) -> bool:
    """Return whether the chip's memory is HBM; if not, it is DDR."""
    return not soc.startswith("Ascend310")


def has_fp16_matrices(soc: str) -> bool:
    """Return whether the chip's matrix units support only FP16 and INT8."""
    return soc.startswith("Ascend310") and not soc.startswith("Ascend310B")


def shares_memory(soc: str) -> bool:
    """Return whether processes can share the chip's memory."""
    return soc != "Ascend310" and not soc.startswith("Ascend310B")


def registers_host_memory(soc: str) -> bool:
    """Return whether the chip can use host memory that the program allocated itself."""
    return not soc.startswith("Ascend310")


def operator_limit_s(soc: str) -> float:
    """Return the time limit of AI Core operators in seconds, both default and maximum."""
    if soc.startswith("Ascend310P"):
        return 547
    return 68 if re.fullmatch(r"Ascend910(A|B|Pro[AB]|PremiumA)?", soc) else 1091
