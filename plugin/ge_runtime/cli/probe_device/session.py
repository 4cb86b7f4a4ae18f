"""The session of a probe: its process, calls of `acl`, a small model and its buffers.

Probes call pyACL itself and not the driver port: what it answers is the question.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from ge_runtime.cli.doctor.trials import Program
from ge_runtime.cli.probe_device.exact_graphs import (
    Graph,
    RollingConv,
    RollingMatmul,
    exact_input,
    onnx_file,
    rolled,
)
from ge_runtime.npu.driver.atc import Atc, own_precision
from ge_runtime.npu.driver.return_codes import ReturnCodeChecker

Anything: TypeAlias = Any
"""What pyACL takes and gives, which comes without types."""

TO_DEVICE, TO_HOST = 1, 2
LONG_MS: Final = 60_000
SMALL_GRAPH: Final = RollingMatmul()
GEARED_GRAPH: Final = RollingMatmul(rows=8, width=64, layers=2, gears=(1, 4, 8))
IMAGE_GRAPH: Final = RollingConv()

_HUGE_FIRST: Final = 0
_PEER_ACCESS: Final = 1
_BUSY_S: Final = 0.3
_MOST_QUEUED: Final = 500


RESULT_MARK: Final = "probed: "
"""Before what came of a probe, among all that a library may print."""


@dataclass(frozen=True)
class Answer:
    """What a probe found. `evidence`: names and values that JSON has words for."""

    text: str
    evidence: Mapping[str, object] = field(default_factory=dict)


class Unavailable(Exception):
    """A function or package that the probe asks about is not there."""


class ProbeProcess:
    """A probe that was started."""

    def __init__(
        self, name: str, device: int, folder: Path, *arguments: str, family: bool = True
    ) -> None:
        """name: of the probe. arguments: what it takes beside the session. family: see Program."""
        module = [sys.executable, "-m", "ge_runtime.cli.probe_device"]
        command = [*module, name, str(device), str(folder), *arguments]
        self.program = Program(command, together=True, family=family)

    def result(self, timeout_s: float) -> tuple[str, str, dict[str, Any]]:
        """What became of it, in one word; its answer; its evidence."""
        ended = self.program.result(timeout_s)
        for line in reversed(ended.printed.splitlines()):
            if line.startswith(RESULT_MARK):
                told: tuple[str, str, dict[str, Any]] = tuple(
                    json.loads(line.removeprefix(RESULT_MARK))
                )
                late = ended.code is None
                note = {"giving_back": f"no end within {timeout_s:g} s"} if late else {}
                return (*told[:2], {**told[2], **note})
        if ended.code is None:
            return "hung", f"no answer within {timeout_s:g} s", {}
        return "died", f"it ended with {ended.code}", {"printed": ended.printed[-2000:]}

    def answer(self) -> tuple[str, dict[str, Any]]:
        """Of a probe that another one started: what it says, and its evidence."""
        outcome, text, evidence = self.result(60.0)
        return (text if outcome == "answered" else f"{outcome}, {text}"), evidence


class ProbeSession:
    """A device for one probe, in a process of its own. What is made here goes with `close`."""

    def __init__(self, acl: Anything, folder: Path, device: int) -> None:
        """acl: the module. folder: where models are compiled, and found by later probes."""
        self.acl = acl
        self.folder = folder
        self.device = device
        self._checker = ReturnCodeChecker(acl.get_recent_err_msg)
        self._made = ExitStack()

    def close(self) -> None:
        """Give back everything, the last first."""
        self._made.close()

    # -- calls -------------------------------------------------------------------------------------

    def raw(self, name: str, *arguments: Anything) -> Anything:
        """What `acl.<name>` answers, as it is. Raises Unavailable."""
        try:
            function = reduce(getattr, name.split("."), self.acl)
        except AttributeError as error:
            raise Unavailable(f"acl.{name} is not there") from error
        return function(*arguments)

    def code(self, name: str, *arguments: Anything) -> int:
        """The return code, whatever it is; it comes last."""
        answer = self.raw(name, *arguments)
        return int(answer[-1] if isinstance(answer, tuple) else answer)

    def call(self, name: str, *arguments: Anything) -> Anything:
        """The value, or values, before a return code of 0. Raises DriverFault."""
        answer = self.raw(name, *arguments)
        # The code is the last of a tuple, or all there is.
        *values, code = answer if isinstance(answer, tuple) else (answer,)
        self._checker.status(f"acl.{name}", code)
        return values[0] if len(values) == 1 else values

    def handle(self, name: str, *arguments: Anything) -> int:
        """What a creator without a return code makes. Raises DriverFault for 0."""
        return self._checker.handle(f"acl.{name}", self.raw(name, *arguments))

    # -- other processes ---------------------------------------------------------------------------

    def start(self, name: str, *arguments: str) -> ProbeProcess:
        """Another probe, beside this one."""
        # No family of its own: it is in this one's process group, and is killed with it.
        return ProbeProcess(name, self.device, self.folder, *arguments, family=False)

    # -- things ------------------------------------------------------------------------------------

    def init_acl(self) -> None:
        """acl.init, and no device."""
        self.call("init")
        self._made.callback(self.call, "finalize")

    def open_device(self) -> None:
        """acl.init, and the device in this thread."""
        self.init_acl()
        self.call("rt.set_device", self.device)
        self._made.callback(self.call, "rt.reset_device", self.device)

    def stream(self) -> int:
        """A new stream."""
        stream: int = self.call("rt.create_stream")
        self._made.callback(self.call, "rt.destroy_stream", stream)
        return stream

    def context(self) -> int:
        """A new context, current in this thread until it goes."""
        before = self.call("rt.get_context")
        self._made.callback(self.call, "rt.set_context", before)
        context: int = self.call("rt.create_context", self.device)
        self._made.callback(self.call, "rt.destroy_context", context)
        return context

    def wait(self, stream: int) -> None:
        """Wait until the stream is done. Raises DriverFault for what failed in it."""
        self.call("rt.synchronize_stream_with_timeout", stream, LONG_MS)

    def malloc(self, nbytes: int) -> int:
        """The address of device memory."""
        address: int = self.call("rt.malloc", max(1, nbytes), _HUGE_FIRST)
        self._made.callback(self.call, "rt.free", address)
        return address

    def import_memory(self, key: str | bytes) -> int:
        """The address of device memory that another process exported."""
        address: int = self.call("rt.ipc_mem_import_by_key", key, _PEER_ACCESS)
        self._made.callback(self.call, "rt.ipc_mem_close", key)
        return address

    def compiled(self, graph: Graph) -> Path:
        """The graph's .om file, compiled if it is not there."""
        om = self.folder / f"{graph.name}.om"
        if not om.exists():
            source = om.with_suffix(".onnx")
            source.write_bytes(onnx_file(graph))
            chip = self.raw("get_soc_name")
            if not chip:  # None where the driver does not know
                raise Unavailable("the driver names no chip to compile for")
            flags = [f"--soc_version={chip}", f"--precision_mode_v2={own_precision(chip)}"]
            Atc.find().compile(source, om, [*graph.flags, *flags])
        return om

    def load(
        self, graph: Graph = SMALL_GRAPH, *, offset: int = 0, weights: int | None = None
    ) -> ProbeModel:
        """A model in memory of ours.

        offset: of everything from the start of its block. weights: where they lie; None: in memory
        of its own.
        """
        path = str(self.compiled(graph))
        work_bytes, weight_bytes = self.call("mdl.query_size", path)
        work = self.malloc(work_bytes + offset) + offset
        if weights is None:
            weights = self.malloc(weight_bytes + offset) + offset
        blocks = (work, work_bytes, weights, weight_bytes)
        number: int = self.call("mdl.load_from_file_with_mem", path, *blocks)
        self._made.callback(self.call, "mdl.unload", number)
        return ProbeModel(self, graph, number, offset)

    def dataset(self, addresses: Sequence[int], sizes: Sequence[int]) -> int:
        """A dataset over memory that is there."""
        handle = self.handle("mdl.create_dataset")
        self._made.callback(self.call, "mdl.destroy_dataset", handle)
        for address, nbytes in zip(addresses, sizes, strict=True):
            buffer = self.handle("create_data_buffer", address, nbytes)
            self._made.callback(self.call, "destroy_data_buffer", buffer)
            self.call("mdl.add_dataset_buffer", handle, buffer)
        return handle


class ProbeModel:
    """A graph that is loaded."""

    def __init__(self, session: ProbeSession, graph: Graph, number: int, offset: int) -> None:
        self.session = session
        self.graph = graph
        self.number = number
        desc = session.handle("mdl.create_desc")
        session.call("mdl.get_desc", desc, number)
        self.input_bytes = [
            int(session.raw("mdl.get_input_size_by_index", desc, place))
            for place in range(session.raw("mdl.get_num_inputs", desc))
        ]
        """The gear's buffer, if there is one, last."""
        self.output_bytes = int(session.raw("mdl.get_output_size_by_index", desc, 0))
        session.call("mdl.destroy_desc", desc)
        self._offset = offset

    def slot(self) -> ProbeSlot:
        """Buffers for one execution at a time."""
        return ProbeSlot(self, self._offset)

    def keep_busy(self, slot: ProbeSlot, stream: int) -> int:
        """Queue executions for about 0.3 s; how many."""
        begin = time.perf_counter()
        slot.submit(stream)
        self.session.wait(stream)
        took = time.perf_counter() - begin
        count = min(_MOST_QUEUED, max(8, round(_BUSY_S / took)))
        for _ in range(count):
            slot.submit(stream)
        return count


class ProbeSlot:
    """Inputs and outputs of a model in device memory; x is there."""

    def __init__(self, model: ProbeModel, offset: int) -> None:
        session = self._session = model.session
        self._model = model
        self._x = exact_input(model.graph.shape())
        self.input_addresses = [
            session.malloc(nbytes + offset) + offset for nbytes in model.input_bytes
        ]
        self.output_address = session.malloc(model.output_bytes + offset) + offset
        self.inputs = session.dataset(self.input_addresses, model.input_bytes)
        self.outputs = session.dataset([self.output_address], [model.output_bytes])
        x, nbytes = self._x.ctypes.data, self._x.nbytes
        session.call("rt.memcpy", self.input_addresses[0], nbytes, x, nbytes, TO_DEVICE)

    def submit(self, stream: int) -> None:
        """Queue an execution. Raises DriverFault."""
        model = self._model
        self._session.call("mdl.execute_async", model.number, self.inputs, self.outputs, stream)

    def execute(self) -> None:
        """Execute and wait, holding the GIL on a device. Raises DriverFault."""
        self._session.call("mdl.execute", self._model.number, self.inputs, self.outputs)

    def is_right(self, gear: Anything = None) -> bool:
        """Whether the output is what it has to be at a gear, or at the largest size."""
        graph = self._model.graph
        y = np.empty(graph.shape(gear), np.float32)
        self._session.call(
            "rt.memcpy", y.ctypes.data, y.nbytes, self.output_address, y.nbytes, TO_HOST
        )
        return bool(np.array_equal(y, rolled(exact_input(y.shape), graph.layers)))
