"""Probes of a model's environment: versions, the GIL, host memory, GE-PY and torchair."""

from __future__ import annotations

import importlib.metadata
import inspect
import mmap
import os
import platform
import threading
import time
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Final

import numpy as np

from ge_runtime.cli.probe_device.exact_graphs import rolling_matmul
from ge_runtime.cli.probe_device.session import TO_DEVICE, Answer, ProbeSession, Unavailable
from ge_runtime.npu.driver.installation import (
    GE_PY_MODULES,
    GE_PY_NAMES,
    Module,
    cann_version,
    import_cann_module,
)

_MIB: Final = 1 << 20
_COPY_BYTES: Final = 64 * _MIB
_HELD_BYTES: Final = 256 * _MIB
_HBM, _DDR = 1, 0
_MAPPED, _PINNED = 0, 0x10000000
_OLD_KERNEL: Final = (5, 10)
_LONG_GRAPHS: Final = (
    rolling_matmul(128, 512, 16),
    rolling_matmul(512, 1024, 64),
    rolling_matmul(4096, 4096, 64),
)
"""Tried in this order until an execution takes at least _LONG_S."""
_LONG_S: Final = 0.01

_EXAMPLE_NUMBERS: Final = (
    (0, np.float32, 3, np.int32, (0.1, 1 / 3, 1.2345678e-7, 3.4e38, -16777215.0)),
    (1, np.float16, 6, np.int16, (0.1, 1 / 3, 6.1e-5, 65504.0, -2049.0)),
    (9, np.int64, 9, np.int64, (0, -1, 2**53 - 1)),
    (12, np.bool_, 4, np.uint8, (True, False)),
)
"""For each type: aclDataType and NumPy type, the types of integers of the same size, and values
that a text may round."""


def versions(session: ProbeSession) -> Answer:
    """Import the packages that must fit together, and read their versions."""
    session.init_acl()
    found = {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "acl": str(getattr(session.acl, "__file__", "")),
        "cann": cann_version(Path(os.environ.get("ASCEND_HOME_PATH", "/nonexistent"))) or "unknown",
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
    versions = ", ".join(f"{name} {found[name]}" for name in names)
    return Answer(f"acl can be imported with {versions}", found)


def held_gil(session: ProbeSession) -> Answer:
    """Measure from another thread which calls hold the GIL."""
    session.open_device()
    stream = session.stream()
    for graph in _LONG_GRAPHS:
        slot = session.load(graph).slot()
        begin = time.perf_counter()
        slot.execute()
        if time.perf_counter() - begin > _LONG_S:
            break
    host = np.frombuffer(mmap.mmap(-1, _COPY_BYTES), np.uint8)
    device = session.malloc(_COPY_BYTES)
    copy = (device, _COPY_BYTES, host.ctypes.data, _COPY_BYTES, TO_DEVICE)

    def submit_and_wait() -> None:
        slot.submit(stream)
        session.wait(stream)

    calls: dict[str, Callable[[], object]] = {
        "mdl.execute": slot.execute,
        "mdl.execute_async + rt.synchronize_stream_with_timeout": submit_and_wait,
        "rt.memcpy": lambda: session.call("rt.memcpy", *copy),
        "mdl.load_from_file_with_mem": lambda: session.load(graph),
    }
    found = {name: _held(call) for name, call in calls.items()}
    shares = (f"{name} {held:.0%} of {took * 1e3:.0f} ms" for name, (held, took) in found.items())
    return Answer(f"longest pause of another thread: {'; '.join(shares)}")


def _held(call: Callable[[], object]) -> tuple[float, float]:
    """Return the longest pause of another thread as a share of the call, and the call's seconds."""
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


def registered_memory(session: ProbeSession) -> Answer:
    """Time queued copies from pinned, registered and ordinary memory."""
    kernel = tuple(map(int, platform.release().split(".")[:2]))
    if kernel <= _OLD_KERNEL:
        return Answer(
            f"not tried on Linux {platform.release()}: up to 5.10, the documents say that "
            "registering memory that is not page-locked raises exceptions on the device"
        )
    session.open_device()
    stream, device = session.stream(), session.malloc(_COPY_BYTES)
    file = os.memfd_create("probe_device")
    os.truncate(file, _COPY_BYTES)
    view = np.frombuffer(mmap.mmap(file, _COPY_BYTES), np.uint8)
    address, found = view.ctypes.data, {}
    # `view` is shared memory, as the device service registers shared memory.
    ways: dict[str, tuple[str, tuple[int, ...]]] = {
        "not registered": ("", ()),
        "host_register MAPPED": ("rt.host_register", (_MAPPED,)),
        "host_register_v2 PINNED": ("rt.host_register_v2", (_PINNED,)),
    }
    for name, (function, flags) in ways.items():
        code = session.code(function, address, _COPY_BYTES, *flags) if function else 0
        found[name] = str(code) if code else _copy_time(session, address, device, stream)
        if function and code == 0:
            session.call("rt.host_unregister", address)
    pinned = session.call("rt.malloc_host", _COPY_BYTES)
    found["malloc_host"] = _copy_time(session, pinned, device, stream)
    session.call("rt.free_host", pinned)
    answers = "; ".join(f"{name}: {result}" for name, result in found.items())
    return Answer(f"call and wait: {answers}", {"kernel": platform.release()})


def _copy_time(session: ProbeSession, address: int, device: int, stream: int) -> str:
    begin = time.perf_counter()
    copy = (device, _COPY_BYTES, address, _COPY_BYTES, TO_DEVICE, stream)
    code = session.code("rt.memcpy_async", *copy)
    called = time.perf_counter()
    waited = session.wait_code(stream)
    ended = time.perf_counter()
    if code or waited:
        return f"memcpy_async returns {code}, the wait {waited}"
    return f"{(called - begin) * 1e3:.1f} ms and {(ended - called) * 1e3:.1f} ms"


def memory_of_a_killed_process(session: ProbeSession) -> Answer:
    """Kill a process that holds device memory, and measure when the memory is free."""
    session.open_device()
    before = _free(session)
    other = session.start("holds_memory")
    assert other.stdout is not None
    other.stdout.readline()
    during = _free(session)
    other.kill()
    other.wait()
    begin, after = time.perf_counter(), _free(session)
    while after < before and time.perf_counter() - begin < 10:
        after = _free(session)
    took = time.perf_counter() - begin
    held, left = (before - during) / _MIB, (before - after) / _MIB
    return Answer(
        f"the process held {held:.0f} MiB; {took:.2f} s after its end {left:.0f} MiB are still "
        "allocated",
        {"before": before, "during": during, "after": after, "seconds": took},
    )


def holds_memory(session: ProbeSession) -> Answer:
    """Run in the other process of `memory_of_a_killed_process`: hold memory until killed."""
    session.open_device()
    session.malloc(_HELD_BYTES)
    print("ready", flush=True)
    time.sleep(60)
    return Answer("it was not killed")


def _free(session: ProbeSession) -> int:
    """Return the free bytes of the card's memory."""
    free: int
    for memory in (_HBM, _DDR):
        free, total = session.call("rt.get_mem_info", memory)
        if total:
            break
    return free


def torch_export(session: ProbeSession) -> Answer:
    """List the export functions of torchair and their signatures."""
    try:
        torchair = import_cann_module("torchair")
    except ImportError:
        try:
            torchair = import_cann_module("torch_npu.dynamo.torchair")
        except ImportError as error:
            raise Unavailable(f"torchair cannot be imported: {error!r}") from error
    found = {
        name: _signature(getattr(torchair, name))
        for name in dir(torchair)
        if "export" in name.lower()
    }
    return Answer(f"torchair has {', '.join(found) or 'no export'}", found)


def ge_py(session: ProbeSession) -> Answer:
    """Find names that the engine uses and this GE-PY lacks. GE-PY 0.0.1 has all of them."""
    missing: list[str] = []
    signatures: dict[str, str] = {}
    for key, name in GE_PY_MODULES.items():
        module = _imported(name)
        for path in GE_PY_NAMES[key]:
            try:
                signatures[f"{name}.{path}"] = _signature(attrgetter(path)(module))
            except AttributeError:
                missing.append(f"{name}.{path}")
    text = f"it lacks {', '.join(missing)}" if missing else "it has all names that are used"
    return Answer(text, {"missing": missing, "signatures": signatures})


def ge_numbers(session: ProbeSession) -> Answer:
    """Create GE-PY tensors of known numbers, and read them back directly and as integers."""
    graph, types = _imported(GE_PY_MODULES["graph"]), _imported(GE_PY_MODULES["types"])
    direct, exact = {}, {}
    for number, dtype, integer_number, integer, values in _EXAMPLE_NUMBERS:
        given = np.array(values, dtype)
        tensor = graph.Tensor(
            given.tolist(), None, types.DataType(number), types.Format.FORMAT_ND, [len(values)]
        )
        try:
            direct[dtype.__name__] = str(tensor.get_data())
        except ValueError as error:
            direct[dtype.__name__] = f"ValueError, {error}"
        tensor.set_data_type(types.DataType(integer_number))
        read = np.asarray(tensor.get_data(), integer).view(dtype)
        exact[dtype.__name__] = read.tobytes() == given.tobytes()
    right = "yes" if all(exact.values()) else f"no: {exact}"
    texts = "; ".join(f"{name}: {text}" for name, text in direct.items())
    return Answer(f"exact as integers: {right}; directly {texts}", {"exact": exact, **direct})


def _imported(name: str) -> Module:
    try:
        return import_cann_module(name)
    except ImportError as error:
        raise Unavailable(f"{name} cannot be imported: {error!r}") from error


def _signature(function: object) -> str:
    try:
        return str(inspect.signature(function))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return "?"
