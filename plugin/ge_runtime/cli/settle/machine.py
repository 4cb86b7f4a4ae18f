"""Probes of what is around a model: versions, Python's lock, host memory, processes that die."""

from __future__ import annotations

import importlib.metadata
import mmap
import os
import platform
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np

from ge_runtime.ascend.installation import cann_version, import_cann_module
from ge_runtime.cli.settle.graphs import Moving
from ge_runtime.cli.settle.lab import LONG_MS, TO_DEVICE, Answer, Lab
from ge_runtime.cli.settle.processes import start

_MIB: Final = 1 << 20
_COPY_BYTES: Final = 64 * _MIB
_TAKEN_BYTES: Final = 256 * _MIB
_HBM, _DDR = 1, 0
_MAPPED, _PINNED = 0, 0x10000000
_OLD_KERNEL: Final = (5, 10)
_LONG: Final = (Moving(128, 512, 16), Moving(512, 1024, 64), Moving(4096, 4096, 64))
"""The first whose execution is long enough to tell is taken."""
_LONG_S: Final = 0.01


def versions(lab: Lab) -> Answer:
    """Import what has to fit together, and ask for versions."""
    lab.init()
    found = {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "acl": str(getattr(lab.acl, "__file__", "")),
        "cann": cann_version(Path(os.environ.get("ASCEND_HOME_PATH", "/nowhere"))) or "unknown",
    }
    for package in ("torch", "torch_npu"):
        try:
            found[package] = importlib.metadata.version(package)
            import_cann_module(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
        except ImportError as error:
            found[package] += f", import fails: {error!r}"
    names = ("python", "numpy", "torch", "torch_npu", "cann")
    shown = ", ".join(f"{name} {found[name]}" for name in names)
    return Answer(f"acl can be imported with {shown}", found)


def pythons_lock(lab: Lab) -> Answer:
    """Watch from another thread which calls stop all of Python while they last."""
    lab.begin()
    stream = lab.stream()
    for graph in _LONG:
        slot = lab.load(graph).slot()
        begin = time.perf_counter()
        slot.execute()
        if time.perf_counter() - begin > _LONG_S:
            break
    host = np.frombuffer(mmap.mmap(-1, _COPY_BYTES), np.uint8)
    device = lab.malloc(_COPY_BYTES)
    both = (device, _COPY_BYTES, host.ctypes.data, _COPY_BYTES, TO_DEVICE)

    def waits() -> None:
        slot.submit(stream)
        lab.wait(stream)

    calls: dict[str, Callable[[], object]] = {
        "mdl.execute": slot.execute,
        "mdl.execute_async + rt.synchronize_stream_with_timeout": waits,
        "rt.memcpy": lambda: lab.call("rt.memcpy", *both),
        "mdl.load_from_file_with_mem": lambda: lab.load(graph),
    }
    found = {name: _held(call) for name, call in calls.items()}
    shown = (f"{name} {held:.0%} of {took * 1e3:.0f} ms" for name, (held, took) in found.items())
    return Answer(f"the longest that Python stood still: {'; '.join(shown)}")


def _held(call: Callable[[], object]) -> tuple[float, float]:
    """The longest stretch in which another thread had no turn, as a share of the call; seconds."""
    ends = threading.Event()
    longest = 0.0

    def watch() -> None:
        nonlocal longest
        last = time.perf_counter()
        while not ends.is_set():
            now = time.perf_counter()
            longest, last = max(longest, now - last), now

    thread = threading.Thread(target=watch)
    thread.start()
    begin = time.perf_counter()
    call()
    took = time.perf_counter() - begin
    ends.set()
    thread.join()
    return min(1.0, longest / took), took


def registered_memory(lab: Lab) -> Answer:
    """Time queued copies from memory that was allocated pinned, registered, and neither."""
    kernel = tuple(map(int, platform.release().split(".")[:2]))
    if kernel <= _OLD_KERNEL:
        return Answer(
            f"not tried on Linux {platform.release()}: up to 5.10, registering memory that is not "
            "page-locked is documented to raise exceptions on the device"
        )
    lab.begin()
    stream, device = lab.stream(), lab.malloc(_COPY_BYTES)
    file = os.memfd_create("settle")
    os.truncate(file, _COPY_BYTES)
    view = np.frombuffer(mmap.mmap(file, _COPY_BYTES), np.uint8)
    address, found = view.ctypes.data, {}
    ways: dict[str, tuple[str, tuple[int, ...]]] = {
        "not registered": ("", ()),
        "host_register MAPPED": ("rt.host_register", (_MAPPED,)),
        "host_register_v2 PINNED": ("rt.host_register_v2", (_PINNED,)),
    }
    for name, (function, flags) in ways.items():
        code = lab.code(function, address, _COPY_BYTES, *flags) if function else 0
        found[name] = str(code) if code else _copy_time(lab, address, device, stream)
        if function and code == 0:
            lab.call("rt.host_unregister", address)
    pinned = lab.call("rt.malloc_host", _COPY_BYTES)
    found["malloc_host"] = _copy_time(lab, pinned, device, stream)
    lab.call("rt.free_host", pinned)
    shown = "; ".join(f"{name}: {what}" for name, what in found.items())
    return Answer(f"call and wait: {shown}", {"kernel": platform.release()})


def _copy_time(lab: Lab, address: int, device: int, stream: int) -> str:
    begin = time.perf_counter()
    copy = (device, _COPY_BYTES, address, _COPY_BYTES, TO_DEVICE, stream)
    code = lab.code("rt.memcpy_async", *copy)
    called = time.perf_counter()
    waited = lab.code("rt.synchronize_stream_with_timeout", stream, LONG_MS)
    ended = time.perf_counter()
    if code or waited:
        return f"memcpy_async gives {code}, the wait {waited}"
    return f"{(called - begin) * 1e3:.1f} ms and {(ended - called) * 1e3:.1f} ms"


def memory_of_the_dead(lab: Lab) -> Answer:
    """Kill a process that has device memory, and watch when it is free again."""
    lab.begin()
    before = _free(lab)
    other = start(lab, "holds_memory")
    other.program.line()
    during = _free(lab)
    other.program.kill()
    begin, after = time.perf_counter(), _free(lab)
    while after < before and time.perf_counter() - begin < 10:
        after = _free(lab)
    took = time.perf_counter() - begin
    taken, left = (before - during) / _MIB, (before - after) / _MIB
    return Answer(
        f"it took {taken:.0f} MiB; {took:.2f} s after its death {left:.0f} MiB are still taken",
        {"before": before, "during": during, "after": after, "seconds": took},
    )


def holds_memory(lab: Lab) -> Answer:
    """The other process of `memory_of_the_dead`: waits to be killed."""
    lab.begin()
    lab.malloc(_TAKEN_BYTES)
    print("ready", flush=True)
    time.sleep(60)
    return Answer("nobody killed it")


def _free(lab: Lab) -> int:
    """Bytes of the card's own kind of memory."""
    free: int
    for kind in (_HBM, _DDR):
        free, total = lab.call("rt.get_mem_info", kind)
        if total:
            break
    return free
