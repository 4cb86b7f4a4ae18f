"""The memory that the machine gives to a process, and the memory that a plan needs.

The kernel does not refuse reservations: it kills a process that touches more memory than there is.
So limits are read before a plan is carried out, from files below a root, which tests replace.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from ge_runtime.errors import PlanFault
from ge_runtime.memory.plan import Plan, aligned_columns

_UNLIMITED: Final = 2**62
"""Control groups of version 1 write "no limit" as a very large number of bytes."""


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """One limit on the host memory of this process."""

    name: str
    """The name in messages."""
    total_bytes: int
    free_bytes: int
    """Bytes free now, including memory that the kernel would reclaim, such as cached files."""
    source: str
    """The file with both values."""


ReadLimits: TypeAlias = Callable[[], Sequence[MemoryLimit]]
"""Returns the current limits."""


def read_limits(root: Path = Path("/")) -> tuple[MemoryLimit, ...]:
    """Return the limits of this process: RAM, control groups, address space.

    Args:
        root: The folder with proc/ and sys/.

    Returns:
        RAM, and the other limits that are lower, as far as they can be read. Empty if the kernel
        provides none.
    """
    ram = _ram(root)
    most = _UNLIMITED if ram is None else ram.total_bytes
    others = (*_control_groups(root), *_address_space(root))
    return (
        *(() if ram is None else (ram,)),
        *(limit for limit in others if limit.total_bytes < most),
    )


def own_resident_bytes(root: Path = Path("/")) -> int | None:
    """Return the bytes of this process in RAM, without files and shared memory.

    Returns None if the kernel does not provide it.
    """
    pages = _text(root / "proc/self/statm").split()
    return (int(pages[1]) - int(pages[2])) * mmap.PAGESIZE if len(pages) > 2 else None


def _ram(root: Path) -> MemoryLimit | None:
    sizes = _sizes(_text(root / "proc/meminfo"))
    if not {"MemTotal", "MemAvailable"} <= sizes.keys():
        return None
    return MemoryLimit("RAM", sizes["MemTotal"], sizes["MemAvailable"], "/proc/meminfo")


def _control_groups(root: Path) -> Iterator[MemoryLimit]:
    """Yield the limits of the process's control group and of its parents."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            yield from _groups(root, "sys/fs/cgroup/memory", path, names)
        elif not controllers:
            names = ("memory.max", "memory.current", "inactive_file")
            yield from _groups(root, "sys/fs/cgroup", path, names)


def _groups(
    root: Path, mount: str, path: str, names: tuple[str, str, str]
) -> Iterator[MemoryLimit]:
    """Yield the limits in the files `names`, from the innermost group outwards.

    In a container, the path may be a path of the host. Then only the mount itself exists, which is
    the container's own group.
    """
    parts = [part for part in path.split("/") if part]
    for count in range(len(parts), -1, -1):
        folder = "/".join((mount, *parts[:count]))
        found = _limit_and_use(root / folder, *names)
        if found is not None:
            total, used = found
            name = "control group /" + "/".join(parts[:count])
            yield MemoryLimit(name, total, max(0, total - used), f"/{folder}")


def _limit_and_use(folder: Path, limit: str, usage: str, cached: str) -> tuple[int, int] | None:
    """Return a group's limit, and its use without inactive cached files."""
    total, used = _number(folder / limit), _number(folder / usage)
    if total is None or used is None or total >= _UNLIMITED:
        return None
    match = re.search(rf"^{cached} (\d+)$", _text(folder / "memory.stat"), re.MULTILINE)
    return total, used - (int(match[1]) if match else 0)


def _address_space(root: Path) -> Iterator[MemoryLimit]:
    limits = _text(root / "proc/self/limits")
    match = re.search(r"^Max address space +(\d+)", limits, re.MULTILINE)
    pages = _text(root / "proc/self/statm").partition(" ")[0]
    if match and pages:
        total = int(match[1])
        used = int(pages) * mmap.PAGESIZE
        yield MemoryLimit(
            "address space (ulimit -v)", total, max(0, total - used), "/proc/self/limits"
        )


def _sizes(text: str) -> dict[str, int]:
    """Parse lines such as "MemTotal: 24683520 kB" to bytes."""
    found = re.findall(r"^(\w+): +(\d+) kB$", text, re.MULTILINE)
    return {name: int(size) * 1024 for name, size in found}


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdecimal() else None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


# -- a plan and its limits -------------------------------------------------------------------------


def host_bytes(plan: Plan, *, on_host: bool, engines: int = 1) -> int:
    """Return the host memory that the plan needs in addition to weights already loaded.

    Args:
        plan: The plan of one engine.
        on_host: True if executions are on the host; for a card or GPU only the batches are.
        engines: Number of engines with this plan.
    """
    return engines * (plan.io_bytes + plan.workspace_bytes * on_host) + plan.state_bytes


def ensure_fits(needed_bytes: int, limits: Sequence[MemoryLimit], plan: Plan) -> None:
    """Raise PlanFault, with tables of the plan and the limits, if a limit has fewer bytes free."""
    short = lacking(needed_bytes, limits)
    if short:
        table = "\n".join((*plan.table(), "", *limits_table(needed_bytes, limits)))
        raise PlanFault(f"{refusal(needed_bytes, short[0])}\n{table}")


def lacking(needed_bytes: int, limits: Sequence[MemoryLimit]) -> list[MemoryLimit]:
    """Return the limits with fewer bytes free, the tightest first."""
    short = [limit for limit in limits if limit.free_bytes < needed_bytes]
    return sorted(short, key=lambda limit: limit.free_bytes)


def refusal(needed_bytes: int, limit: MemoryLimit) -> str:
    """Return the error message with the remedy."""
    return (
        f"the plan does not fit this machine: found {needed_bytes:,} bytes wanted, expected at "
        f"most {limit.free_bytes:,}, the free part of {limit.name} ({limit.source}): lower a limit "
        "or max_batch_size, or give the process more memory"
    )


def limits_table(needed_bytes: int, limits: Sequence[MemoryLimit]) -> list[str]:
    """Return a table of the needed bytes and each limit, line by line; empty without limits."""
    if not limits:
        return []
    rows = [
        (
            limit.name,
            f"{needed_bytes:,}",
            f"{limit.free_bytes:,}",
            f"{limit.total_bytes:,}",
            "too little" if limit.free_bytes < needed_bytes else "enough",
        )
        for limit in limits
    ]
    return aligned_columns([("", "needed", "free", "of", ""), *rows], "<>>><")
