"""Trials on a simulated card: other libraries in the process, and an operator that hangs.

    python -m tools.ascend_trials --page docs/results/ascend.md

A library of the same process works in a context of its own. Before each operation of an engine the
library makes a call, and after it, without setting its context again. Each combination runs in a
process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np

import ascend_simulator
from ascend_simulator import atc
from ge_runtime.config import TimeLimits
from ge_runtime.engines.artifact import Artifact
from ge_runtime.errors import RuntimeFault
from ge_runtime.npu.engines.ascend_backend import AscendBackend

LIBRARIES: Final = {
    "guard": "`set_device` before each call (torch_npu)",
    "wrapper": "`set_context` before each call (mmdeploy)",
    "streams": "streams in the default context, set once",
}
CONDITIONS: Final = ("one thread", "four threads", "two devices", "python -O")
_EVENTS: Final = (
    "the request whose operator hangs",
    "the next request",
    "a request to another model of the process",
    "the process",
)
_CODE: Final = re.compile(r"\d{6} ACL_\w+")
_SITE: Final = Path(ascend_simulator.__file__).parent / "site"
_ROWS: Final = np.arange(8, dtype=np.float32).reshape(2, 4)


class Library:
    """Another user of pyACL in the process."""

    def __init__(self, kind: str, device: int) -> None:
        self._rt = _acl().rt
        self._kind, self._device = kind, device
        self._own = None
        self._sets = 0
        self._set_device()
        if kind == "wrapper":
            self._own = _ok(self._rt.create_context(device))
        self._stream = _ok(self._rt.create_stream())
        self._event = _ok(self._rt.create_event())

    def _set_device(self) -> None:
        _ok(self._rt.set_device(self._device))
        self._sets += 1

    def enter(self) -> int:
        """Make the library's context current, as it does before a call; return the context."""
        if self._kind == "guard":
            self._set_device()
        elif self._own is not None:
            _ok(self._rt.set_context(self._own))
        context: int = _ok(self._rt.get_context())
        return context

    def works(self, context: int) -> bool:
        """Return whether calls succeed in the current context, and that is `context`."""
        codes = (
            self._rt.record_event(self._event, self._stream),
            self._rt.synchronize_stream(self._stream),
        )
        return codes == (0, 0) and self._rt.get_context() == (context, 0)

    def close(self) -> None:
        self.enter()
        for code in (self._rt.destroy_event(self._event), self._rt.destroy_stream(self._stream)):
            _ok(code)
        if self._own is not None:
            _ok(self._rt.destroy_context(self._own))
        for _ in range(self._sets):
            _ok(self._rt.reset_device(self._device))


def counted(kind: str, device: int, model: Path, *, fails: bool) -> list[int]:
    """Run an engine beside a library.

    Returns:
        The number of the engine's operations that succeeded, of calls of the library that succeeded
        after them, and of operations.
    """
    library = Library(kind, device)
    good = [0, 0, 0]

    def beside(operation: Callable[[], Any]) -> Any:  # noqa: ANN401 - any operation
        context = library.enter()
        good[2] += 1
        result = operation()
        good[0] += 1
        good[1] += library.works(context)
        return result

    backend = beside(lambda: AscendBackend(0))
    artifact = Artifact(model, "om", "")
    engine = beside(lambda: backend.open([artifact], threads=1, outputs=()))
    beside(lambda: engine.bind([], backend.memory))
    beside(lambda: _run(engine))
    if fails:
        ascend_simulator.current().faults.arm("execute@1=507011")
        beside(lambda: _failure(engine))
    beside(lambda: _run(engine))
    beside(engine.reload)
    beside(engine.close)
    beside(backend.close)
    library.close()
    return good


def _run(engine: Any) -> None:  # noqa: ANN401 - an engine of any kind
    result = engine.run({"x": _ROWS}, {"y": None})["y"]
    if not np.array_equal(result, _ROWS * 2):
        raise ValueError(f"found {result}, expected {_ROWS * 2}")


def _failure(engine: Any) -> None:  # noqa: ANN401 - an engine of any kind
    try:
        _run(engine)
    except RuntimeFault:
        return
    raise ValueError("found a result, expected an error")


def cell(kind: str, condition: str, model: Path) -> list[int]:
    """Return the counts of one combination, all threads together."""
    _ok(_acl().init())
    device = int(condition == "two devices")
    threads = 4 if condition == "four threads" else 1
    with ThreadPoolExecutor(threads) as pool:
        runs = [
            pool.submit(counted, kind, device, model, fails=threads == 1) for _ in range(threads)
        ]
        counts = [run.result() for run in runs]
    _ok(_acl().finalize())
    return [sum(column) for column in zip(*counts, strict=True)]


def timeline(model: Path, *, limited: bool) -> list[str]:
    """Return the events of an operator that hangs, with or without a limit for operators."""
    if not limited:
        del _acl().rt.set_op_execute_time_out  # as before: CANN's own limit, 1,091 s
    limits = TimeLimits()
    backend = AscendBackend(0, limits=limits)
    engines = []
    for _ in range(2):
        engines.append(backend.open([Artifact(model, "om", "")], threads=1, outputs=()))
        engines[-1].bind([], backend.memory)
    ascend_simulator.current().faults.arm("execute@1=hang")
    end = limits.execution_s / 2 if limited else limits.execution_s
    events = []
    for engine in (engines[0], *engines):
        try:
            _run(engine)
            events.append("answered")
        except RuntimeFault as fault:
            code = _CODE.search(str(fault))
            found = code[0] if code else str(fault)
            events.append(f"{found}, {'card lost' if engine.lost else 'executor reset'}")
    events[0] = f"after {end:g} s: {events[0]}"
    lost = any(engine.lost for engine in engines)
    return [*events, "must restart" if lost else "continues"]


def _acl() -> Any:  # noqa: ANN401 - a module without types
    return import_module("acl")


def _ok(answer: Any) -> Any:  # noqa: ANN401 - results of pyACL
    value, code = answer if isinstance(answer, tuple) else (None, answer)
    if code != 0:
        raise ValueError(f"found code {code}: {_acl().get_recent_err_msg()}")
    return value


def _compiled(folder: Path) -> Path:
    import onnx
    from onnx import TensorProto, helper

    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 4]) for name in "xy"]
    nodes = [helper.make_node("Add", ["x", "x"], ["y"])]
    graph = helper.make_graph(nodes, "double", values[:1], values[1:])
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), folder / "double.onnx")
    flags = {
        "framework": "5",
        "model": folder / "double.onnx",
        "output": folder / "double",
        "soc_version": "AscendSimulator",
        "precision_mode_v2": "origin",
    }
    return atc.run([f"--{flag}={value}" for flag, value in flags.items()])


def _child(*arguments: str, optimized: bool = False) -> Any:  # noqa: ANN401 - JSON
    environment = {**os.environ, "ASCEND_SIMULATOR_DEVICES": "2"}
    environment["PYTHONPATH"] = f"{_SITE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    flags = ["-O"] if optimized else []
    command = [sys.executable, *flags, "-m", "tools.ascend_trials", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise RuntimeError(f"{arguments}: {lines[-1] if lines else done.returncode}")
    return json.loads(done.stdout)


def _table(headings: list[str], rows: list[list[str]]) -> list[str]:
    lines = [headings, ["---"] * len(headings), *rows]
    return [f"| {' | '.join(line)} |" for line in lines]


def page() -> str:
    """Return the page with both matrices and both timelines."""
    with TemporaryDirectory(prefix="ascend_trials_") as scratch:
        model = str(_compiled(Path(scratch)))
        counts = {
            (kind, condition): _child(
                "--cell", kind, condition, model, optimized=condition == "python -O"
            )
            for kind in LIBRARIES
            for condition in CONDITIONS
        }
        old, new = (_child("--timeline", limit, model) for limit in ("old", "new"))
    lines = []
    for place, title in (
        (0, "The engine's operations that succeeded after a call of the library"),
        (1, "The library's calls that succeeded after an operation of the engine"),
    ):
        rows = [
            [
                text,
                *(f"{counts[kind, each][place]} of {counts[kind, each][2]}" for each in CONDITIONS),
            ]
            for kind, text in LIBRARIES.items()
        ]
        lines += ["", f"### {title}", "", *_table(["The library", *CONDITIONS], rows)]
    lines += ["", "## An operator that hangs", ""]
    lines += ["The simulator ends waits at once; the times are those of the limits.", ""]
    rows = [list(each) for each in zip(_EVENTS, old, new, strict=True)]
    lines += _table(["Event", "Without `operator_timeout_s`", "With its default"], rows)
    return "\n".join([*_HEAD, *lines, ""])


_HEAD: Final = [
    "# Ascend on the simulator: contexts and hangs",
    "",
    "Written by `python -m tools.ascend_trials --page docs/results/ascend.md`, on the",
    "[simulator](../simulator.md). None of it was run on a card.",
    "",
    "## Another library in the process",
    "",
    "A library of the process uses pyACL with a context of its own. An engine opens a card, loads",
    "a model, executes it, fails, executes again, reloads and closes. The library makes a call",
    "before each operation, and one after it without setting its context again.",
]


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--page", type=Path, help="the page to write (default: standard output)")
    parser.add_argument("--cell", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--timeline", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.cell:
        kind, condition, model = given.cell
        print(json.dumps(cell(kind, condition, Path(model))))
    elif given.timeline:
        limit, model = given.timeline
        print(json.dumps(timeline(Path(model), limited=limit == "new")), flush=True)
        os._exit(0)  # a lost card cannot be closed
    elif given.page:
        given.page.write_text(page(), encoding="utf-8")
    else:
        print(page())


if __name__ == "__main__":
    main()
