"""A probe's child process and its session: calls of `acl`, small models and their buffers.

Probes call pyACL directly and not through the driver interface, because they examine how pyACL
itself behaves.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from ge_runtime.child_process import Outcome, run_command
from ge_runtime.cli.probe_device.exact_graphs import (
    ExactGraph,
    Gear,
    exact_input,
    rolled,
    rolling_conv,
    rolling_matmul,
)
from ge_runtime.npu.driver.atc import Atc, own_precision
from ge_runtime.npu.driver.cann_values import ReturnCodeChecker

Untyped: TypeAlias = Any
"""An argument or result of pyACL, which has no type hints."""
ProbeResult: TypeAlias = tuple[str, str, dict[str, Any]]
"""Outcome (answered, failed, hung or died), answer and evidence."""

TO_DEVICE, TO_HOST = 1, 2
LONG_MS: Final = 60_000
SMALL_GRAPH: Final = rolling_matmul()
GEARED_GRAPH: Final = rolling_matmul(rows=8, width=64, layers=2, gears=(1, 4, 8))
IMAGE_GRAPH: Final = rolling_conv()

_HUGE_FIRST: Final = 0
_PEER_ACCESS: Final = 1
_BUSY_S: Final = 0.3
_MAX_QUEUED: Final = 500
_RESULT_MARK: Final = "probed: "
"""Start of the line with the result; libraries may print other lines."""


@dataclass(frozen=True)
class Answer:
    """The answer of a probe. Values of `evidence` can be encoded as JSON."""

    text: str
    evidence: Mapping[str, object] = field(default_factory=dict)


class Unavailable(Exception):
    """The function or package that the probe asks about does not exist."""


def right_or_wrong(right: bool) -> str:
    """Return "right" or "wrong", for use in an answer."""
    return "right" if right else "wrong"


def probe_command(name: str, device: int, folder: Path, *arguments: str) -> list[str]:
    """Return the command that runs a probe, with the probe's own arguments."""
    module = [sys.executable, "-m", "ge_runtime.cli.probe_device"]
    return [*module, name, str(device), str(folder), *arguments]


def run_probe(name: str, device: int, folder: Path, timeout_s: float) -> ProbeResult:
    """Run a probe in a child process, which is killed at the time limit."""
    ended = run_command(probe_command(name, device, folder), timeout_s)
    timed_out = ended.outcome is Outcome.TIMED_OUT
    if found := find_result(ended.stdout):
        outcome, text, evidence = found
        if timed_out:  # the probe answered, but releasing its resources hung
            evidence = {**evidence, "release": f"no end within {timeout_s:g} s"}
        return outcome, text, evidence
    if timed_out:
        return "hung", f"no answer within {timeout_s:g} s", {}
    printed = f"{ended.stdout}{ended.stderr}"[-2000:]
    return "died", f"the process ended: {ended.error or 'exit code 0'}", {"printed": printed}


def print_result(outcome: str, answer: Answer) -> None:
    """Print a probe's result for the parent process."""
    result = json.dumps([outcome, answer.text, dict(answer.evidence)])
    print(f"{_RESULT_MARK}{result}", flush=True)


def find_result(stdout: str) -> ProbeResult | None:
    """Return the result in a probe's output, if it printed one."""
    for line in reversed(stdout.splitlines()):
        if line.startswith(_RESULT_MARK):
            outcome, text, evidence = json.loads(line.removeprefix(_RESULT_MARK))
            return outcome, text, evidence
    return None


class ProbeSession:
    """A device and everything that one probe creates on it. `close` releases all of this."""

    def __init__(self, acl: Untyped, folder: Path, device: int) -> None:
        """Create a session.

        Args:
            acl: the module `acl`.
            folder: the folder for compiled models, shared by all probes of a run.
            device: number of the card.
        """
        self.acl = acl
        self.folder = folder
        self.device = device
        self._checker = ReturnCodeChecker(acl.get_recent_err_msg)
        self._releases = ExitStack()

    def close(self) -> None:
        """Release everything in reverse order of creation."""
        self._releases.close()

    # -- calls -------------------------------------------------------------------------------------

    def raw(self, name: str, *arguments: Untyped) -> Untyped:
        """Return the result of `acl.<name>` unchanged. Raises Unavailable."""
        try:
            function = reduce(getattr, name.split("."), self.acl)
        except AttributeError as error:
            raise Unavailable(f"acl.{name} does not exist") from error
        return function(*arguments)

    def code(self, name: str, *arguments: Untyped) -> int:
        """Call `acl.<name>` and return its code, which is the last or only result."""
        answer = self.raw(name, *arguments)
        return int(answer[-1] if isinstance(answer, tuple) else answer)

    def call(self, name: str, *arguments: Untyped) -> Untyped:
        """Call `acl.<name>` and return its results without the code. Raises DriverFault."""
        answer = self.raw(name, *arguments)
        *values, code = answer if isinstance(answer, tuple) else (answer,)
        self._checker.status(f"acl.{name}", code)
        return values[0] if len(values) == 1 else values

    def handle(self, name: str, *arguments: Untyped) -> int:
        """Call a function that returns a handle and no code. Raises DriverFault for handle 0."""
        return self._checker.handle(f"acl.{name}", self.raw(name, *arguments))

    # -- other processes ---------------------------------------------------------------------------

    def start(self, name: str, *arguments: str) -> subprocess.Popen[str]:
        """Start another probe, in the process group of this probe."""
        return subprocess.Popen(
            probe_command(name, self.device, self.folder, *arguments),
            stdout=subprocess.PIPE,
            text=True,
        )

    # -- resources ---------------------------------------------------------------------------------

    def init_acl(self) -> None:
        """Initialize ACL without a device."""
        self.call("init")
        self._releases.callback(self.call, "finalize")

    def open_device(self) -> None:
        """Initialize ACL and set the device in this thread."""
        self.init_acl()
        self.call("rt.set_device", self.device)
        self._releases.callback(self.call, "rt.reset_device", self.device)

    def stream(self) -> int:
        stream: int = self.call("rt.create_stream")
        self._releases.callback(self.call, "rt.destroy_stream", stream)
        return stream

    def context(self) -> int:
        """Create a context, current in this thread until the session closes."""
        before = self.call("rt.get_context")
        self._releases.callback(self.call, "rt.set_context", before)
        context: int = self.call("rt.create_context", self.device)
        self._releases.callback(self.call, "rt.destroy_context", context)
        return context

    def wait(self, stream: int) -> None:
        """Wait until the stream is idle. Raises DriverFault for a failure in the stream."""
        self.call("rt.synchronize_stream_with_timeout", stream, LONG_MS)

    def wait_code(self, stream: int, limit_ms: int = LONG_MS) -> int:
        """Wait for the stream and return the code."""
        return self.code("rt.synchronize_stream_with_timeout", stream, limit_ms)

    def malloc(self, nbytes: int) -> int:
        """Return the address of new device memory."""
        address: int = self.call("rt.malloc", max(1, nbytes), _HUGE_FIRST)
        self._releases.callback(self.call, "rt.free", address)
        return address

    def import_memory(self, key: str | bytes) -> int:
        """Return the address of device memory that another process exported."""
        address: int = self.call("rt.ipc_mem_import_by_key", key, _PEER_ACCESS)
        self._releases.callback(self.call, "rt.ipc_mem_close", key)
        return address

    def compiled(self, graph: ExactGraph) -> Path:
        """Return the graph's .om file, which the first call compiles."""
        om = self.folder / f"{graph.name}.om"
        if not om.exists():
            source = om.with_suffix(".onnx")
            source.write_bytes(graph.onnx_file())
            chip = self.raw("get_soc_name")
            if not chip:  # None if the driver does not know the chip
                raise Unavailable("the driver names no chip to compile for")
            flags = [f"--soc_version={chip}", f"--precision_mode_v2={own_precision(chip)}"]
            Atc.find().compile(source, om, [*graph.flags, *flags])
        return om

    def load(
        self, graph: ExactGraph = SMALL_GRAPH, *, offset: int = 0, weights: int | None = None
    ) -> ProbeModel:
        """Load a model.

        Args:
            graph: the graph.
            offset: bytes between the start of each allocation and the address that is used.
            weights: address of the weights; None to allocate them.
        """
        path = str(self.compiled(graph))
        work_bytes, weight_bytes = self.call("mdl.query_size", path)
        work = self.malloc(work_bytes + offset) + offset
        if weights is None:
            weights = self.malloc(weight_bytes + offset) + offset
        blocks = (work, work_bytes, weights, weight_bytes)
        number: int = self.call("mdl.load_from_file_with_mem", path, *blocks)
        self._releases.callback(self.call, "mdl.unload", number)
        return ProbeModel(self, graph, number, offset)

    def dataset(self, addresses: Sequence[int], sizes: Sequence[int]) -> int:
        """Create a dataset over existing memory."""
        handle = self.handle("mdl.create_dataset")
        self._releases.callback(self.call, "mdl.destroy_dataset", handle)
        for address, nbytes in zip(addresses, sizes, strict=True):
            buffer = self.handle("create_data_buffer", address, nbytes)
            self._releases.callback(self.call, "destroy_data_buffer", buffer)
            self.call("mdl.add_dataset_buffer", handle, buffer)
        return handle

    def copy_in(self, address: int, array: np.ndarray[Any, Any]) -> None:
        """Copy an array to device memory."""
        nbytes = array.nbytes
        self.call("rt.memcpy", address, nbytes, array.ctypes.data, nbytes, TO_DEVICE)

    def copy_out(self, array: np.ndarray[Any, Any], address: int) -> None:
        """Fill an array from device memory."""
        nbytes = array.nbytes
        self.call("rt.memcpy", array.ctypes.data, nbytes, address, nbytes, TO_HOST)


class ProbeModel:
    """A loaded model."""

    def __init__(self, session: ProbeSession, graph: ExactGraph, number: int, offset: int) -> None:
        self.session = session
        self.graph = graph
        self.number = number
        self.offset = offset
        desc = session.handle("mdl.create_desc")
        session.call("mdl.get_desc", desc, number)
        self.input_bytes = [
            int(session.raw("mdl.get_input_size_by_index", desc, place))
            for place in range(session.raw("mdl.get_num_inputs", desc))
        ]
        """Size of each input; the gear's input, if there is one, is last."""
        self.output_bytes = int(session.raw("mdl.get_output_size_by_index", desc, 0))
        session.call("mdl.destroy_desc", desc)

    def slot(self) -> ProbeSlot:
        """Allocate buffers for one execution at a time."""
        return ProbeSlot(self)

    def keep_busy(self, slot: ProbeSlot, stream: int) -> int:
        """Queue executions for about 0.3 s and return their number."""
        begin = time.perf_counter()
        slot.submit(stream)
        self.session.wait(stream)
        took = time.perf_counter() - begin
        count = min(_MAX_QUEUED, max(8, round(_BUSY_S / took)))
        for _ in range(count):
            slot.submit(stream)
        return count


class ProbeSlot:
    """Inputs and outputs of a model in device memory; the input `x` is filled."""

    def __init__(self, model: ProbeModel) -> None:
        session = self._session = model.session
        self._model = model
        offset = model.offset
        self.input_addresses = [
            session.malloc(nbytes + offset) + offset for nbytes in model.input_bytes
        ]
        self.output_address = session.malloc(model.output_bytes + offset) + offset
        self.inputs = session.dataset(self.input_addresses, model.input_bytes)
        self.outputs = session.dataset([self.output_address], [model.output_bytes])
        session.copy_in(self.input_addresses[0], exact_input(model.graph.shape()))

    @property
    def gear_input(self) -> int:
        """Index of the gear's input."""
        return len(self.input_addresses) - 1

    def submit(self, stream: int) -> None:
        """Queue an execution. Raises DriverFault."""
        self._session.call("mdl.execute_async", *self._arguments(stream))

    def submit_code(self, stream: int) -> int:
        """Queue an execution and return the code."""
        return self._session.code("mdl.execute_async", *self._arguments(stream))

    def execute(self) -> None:
        """Execute and wait. On a device, the call holds the GIL. Raises DriverFault."""
        self._session.call("mdl.execute", self._model.number, self.inputs, self.outputs)

    def is_right(self, gear: Gear | None = None) -> bool:
        """Return whether the output is exact at a gear, or at the largest size."""
        graph = self._model.graph
        y = np.empty(graph.shape(gear), np.float32)
        self._session.copy_out(y, self.output_address)
        return bool(np.array_equal(y, rolled(exact_input(y.shape), graph.layers)))

    def _arguments(self, stream: int) -> tuple[int, int, int, int]:
        return self._model.number, self.inputs, self.outputs, stream
