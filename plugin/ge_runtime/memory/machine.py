"""What the machine gives a process of memory, and what a plan needs of it.

The kernel refuses nobody who reserves memory: it kills whoever touches more than there is. So what
there is is read before a plan is carried out, from the files below a root, which tests replace.
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
"""Control groups of version 1 write "no limit" as the largest number of pages there is."""


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """One bound on the host's memory that this process can have."""

    name: str
    """For people."""
    total_bytes: int
    free_bytes: int
    """At this moment. What the kernel would give up for it, such as cached files, is free."""
    source: str
    """Where both were read."""


ReadLimits: TypeAlias = Callable[[], Sequence[MemoryLimit]]
"""The bounds there are now."""


def read_limits(root: Path = Path("/")) -> tuple[MemoryLimit, ...]:
    """The bounds on this process: RAM, its control groups, its address space.

    root: the folder that has proc/ and sys/. Bounds that cannot be read, or that are no smaller
    than RAM, are left out; nothing where no kernel tells them.
    """
    ram = _ram(root)
    most = _UNLIMITED if ram is None else ram.total_bytes
    others = (*_control_groups(root), *_address_space(root))
    return (
        *(() if ram is None else (ram,)),
        *(limit for limit in others if limit.total_bytes < most),
    )


def own_resident_bytes(root: Path = Path("/")) -> int | None:
    """Of this process's memory what is in RAM, without files and what others share.

    None where no kernel tells it.
    """
    pages = _text(root / "proc/self/statm").split()
    return (int(pages[1]) - int(pages[2])) * mmap.PAGESIZE if len(pages) > 2 else None


def _ram(root: Path) -> MemoryLimit | None:
    sizes = _sizes(_text(root / "proc/meminfo"))
    if not {"MemTotal", "MemAvailable"} <= sizes.keys():
        return None
    return MemoryLimit("RAM", sizes["MemTotal"], sizes["MemAvailable"], "/proc/meminfo")


def _control_groups(root: Path) -> Iterator[MemoryLimit]:
    """The limits of the process's control group and of those it lies in."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            yield from _groups(root, "sys/fs/cgroup/memory", path, _version_1)
        elif not controllers:
            yield from _groups(root, "sys/fs/cgroup", path, _version_2)


def _groups(
    root: Path, mount: str, path: str, read: Callable[[Path], tuple[int, int] | None]
) -> Iterator[MemoryLimit]:
    """The limits from the innermost group outwards.

    In a container the path may be the host's, of which nothing is there but the mount itself: that
    is the container's own group then.
    """
    parts = [part for part in path.split("/") if part]
    for count in range(len(parts), -1, -1):
        folder = "/".join((mount, *parts[:count]))
        found = read(root / folder)
        if found is not None:
            total, used = found
            name = "control group /" + "/".join(parts[:count])
            yield MemoryLimit(name, total, max(0, total - used), f"/{folder}")


def _version_2(folder: Path) -> tuple[int, int] | None:
    return _limit_and_use(folder, "memory.max", "memory.current", "inactive_file")


def _version_1(folder: Path) -> tuple[int, int] | None:
    return _limit_and_use(
        folder, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
    )


def _limit_and_use(folder: Path, limit: str, usage: str, cached: str) -> tuple[int, int] | None:
    """A group's limit, and what is used of it but for cached files that nobody touches."""
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
    """Lines such as "MemTotal: 24683520 kB", in bytes."""
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


# ------------------------------------------------------------------------- a plan and its limits


def host_bytes(plan: Plan, *, on_host: bool, engines: int = 1) -> int:
    """What the plan takes of the host's memory beside weights that are loaded already.

    on_host: whether executions are on the host; on a card or GPU it has the batches alone.
    engines: how many are planned alike.
    """
    return engines * (plan.io_bytes + plan.workspace_bytes * on_host) + plan.state_bytes


def ensure_fits(needed_bytes: int, limits: Sequence[MemoryLimit], plan: Plan) -> None:
    """Raise PlanFault, with both tables, where a limit has less than that free."""
    short = lacking(needed_bytes, limits)
    if short:
        table = "\n".join((*plan.table(), "", *limits_table(needed_bytes, limits)))
        raise PlanFault(f"{refusal(needed_bytes, short[0])}\n{table}")


def lacking(needed_bytes: int, limits: Sequence[MemoryLimit]) -> list[MemoryLimit]:
    """The limits that have less than that free, the tightest first."""
    short = [limit for limit in limits if limit.free_bytes < needed_bytes]
    return sorted(short, key=lambda limit: limit.free_bytes)


def refusal(needed_bytes: int, limit: MemoryLimit) -> str:
    """What is wrong, and the cure."""
    return (
        f"the plan does not fit this machine: found {needed_bytes:,} bytes wanted, expected at "
        f"most {limit.free_bytes:,}, what is free of {limit.name} ({limit.source}): lower a limit "
        "or max_batch_size, or give the process more memory"
    )


def limits_table(needed_bytes: int, limits: Sequence[MemoryLimit]) -> list[str]:
    """What is needed beside what each limit has, for people, line by line; nothing without any."""
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
