"""What probes have in common: calls of `acl`, a small model, and its buffers.

Probes call pyACL itself and not the driver port: what it answers is the question.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from ge_runtime.ascend.atc import Atc
from ge_runtime.ascend.return_codes import ReturnCodeChecker
from ge_runtime.cli.settle.graphs import Graph, Moving, Pictures, moved, numbers, onnx_file

Anything: TypeAlias = Any
"""What pyACL takes and gives, which comes without types."""

TO_DEVICE, TO_HOST = 1, 2
LONG_MS: Final = 60_000
SMALL: Final = Moving()
GEARED: Final = Moving(rows=8, width=64, layers=2, gears=(1, 4, 8))
PICTURES: Final = Pictures()

_HUGE_FIRST: Final = 0
_PEER_ACCESS: Final = 1
_BUSY_S: Final = 0.3
_MOST_QUEUED: Final = 500


@dataclass(frozen=True)
class Answer:
    """What a probe found. `evidence`: names and values that JSON has words for."""

    text: str
    evidence: Mapping[str, object] = field(default_factory=dict)


class Absent(Exception):
    """A function or package that the probe asks about is not there."""


class Lab:
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
        """What `acl.<name>` answers, as it is. Raises Absent."""
        try:
            function = reduce(getattr, name.split("."), self.acl)
        except AttributeError as error:
            raise Absent(f"acl.{name} is not there") from error
        return function(*arguments)

    def code(self, name: str, *arguments: Anything) -> int:
        """The return code, whatever it is; it comes last."""
        answer = self.raw(name, *arguments)
        return int(answer[-1] if isinstance(answer, tuple) else answer)

    def call(self, name: str, *arguments: Anything) -> Anything:
        """The value, or values, before a return code of 0. Raises DriverFault."""
        answer = self.raw(name, *arguments)
        *values, code = answer if isinstance(answer, tuple) else (answer,)
        self._checker.status(f"acl.{name}", code)
        return values[0] if len(values) == 1 else values

    def handle(self, name: str, *arguments: Anything) -> int:
        """What a creator without a return code makes. Raises DriverFault for 0."""
        return self._checker.handle(f"acl.{name}", self.raw(name, *arguments))

    # -- things ------------------------------------------------------------------------------------

    def init(self) -> None:
        """acl.init, and no device."""
        self.call("init")
        self._made.callback(self.call, "finalize")

    def begin(self) -> None:
        """acl.init, and the device in this thread."""
        self.init()
        self.call("rt.set_device", self.device)
        self._made.callback(self.call, "rt.reset_device", self.device)

    def stream(self) -> int:
        """A new one."""
        stream: int = self.call("rt.create_stream")
        self._made.callback(self.call, "rt.destroy_stream", stream)
        return stream

    def wait(self, stream: int) -> None:
        """Until it is done. Raises DriverFault for what failed in it."""
        self.call("rt.synchronize_stream_with_timeout", stream, LONG_MS)

    def malloc(self, nbytes: int) -> int:
        """The address of device memory."""
        address: int = self.call("rt.malloc", max(1, nbytes), _HUGE_FIRST)
        self._made.callback(self.call, "rt.free", address)
        return address

    def imported(self, key: str | bytes) -> int:
        """The address of device memory that another process exported."""
        address: int = self.call("rt.ipc_mem_import_by_key", key, _PEER_ACCESS)
        self._made.callback(self.call, "rt.ipc_mem_close", key)
        return address

    def om(self, graph: Graph) -> Path:
        """It, compiled."""
        om = self.folder / f"{graph.name}.om"
        if not om.exists():
            source = om.with_suffix(".onnx")
            source.write_bytes(onnx_file(graph))
            chip = f"--soc_version={self.raw('get_soc_name')}"
            Atc.find().compile(source, om, [*graph.flags, chip, "--precision_mode_v2=origin"])
        return om

    def load(self, graph: Graph = SMALL, *, offset: int = 0, weights: int | None = None) -> Model:
        """A model in memory of ours.

        offset: of everything from the start of its block. weights: where they lie; None: in memory
        of its own.
        """
        path = str(self.om(graph))
        work_bytes, weight_bytes = self.call("mdl.query_size", path)
        work = self.malloc(work_bytes + offset) + offset
        if weights is None:
            weights = self.malloc(weight_bytes + offset) + offset
        blocks = (work, work_bytes, weights, weight_bytes)
        number: int = self.call("mdl.load_from_file_with_mem", path, *blocks)
        self._made.callback(self.call, "mdl.unload", number)
        return Model(self, graph, number, offset)

    def dataset(self, addresses: Sequence[int], sizes: Sequence[int]) -> int:
        """A dataset over memory that is there."""
        handle = self.handle("mdl.create_dataset")
        self._made.callback(self.call, "mdl.destroy_dataset", handle)
        for address, nbytes in zip(addresses, sizes, strict=True):
            buffer = self.handle("create_data_buffer", address, nbytes)
            self._made.callback(self.call, "destroy_data_buffer", buffer)
            self.call("mdl.add_dataset_buffer", handle, buffer)
        return handle


class Model:
    """A graph that is loaded."""

    def __init__(self, lab: Lab, graph: Graph, number: int, offset: int) -> None:
        self.lab = lab
        self.graph = graph
        self.number = number
        desc = lab.handle("mdl.create_desc")
        lab.call("mdl.get_desc", desc, number)
        self.input_bytes = [
            int(lab.raw("mdl.get_input_size_by_index", desc, place))
            for place in range(lab.raw("mdl.get_num_inputs", desc))
        ]
        """The gear's buffer, if there is one, last."""
        self.output_bytes = int(lab.raw("mdl.get_output_size_by_index", desc, 0))
        lab.call("mdl.destroy_desc", desc)
        self._offset = offset

    def slot(self) -> Slot:
        """Buffers for one execution at a time."""
        return Slot(self, self._offset)

    def keep_busy(self, slot: Slot, stream: int) -> int:
        """Queue executions for about 0.3 s; how many."""
        begin = time.perf_counter()
        slot.submit(stream)
        self.lab.wait(stream)
        took = time.perf_counter() - begin
        count = min(_MOST_QUEUED, max(8, round(_BUSY_S / took)))
        for _ in range(count):
            slot.submit(stream)
        return count


class Slot:
    """Inputs and outputs of a model in device memory; x is there."""

    def __init__(self, model: Model, offset: int) -> None:
        lab = self._lab = model.lab
        self._model = model
        self._x = numbers(model.graph.shape())
        self.inputs = [lab.malloc(nbytes + offset) + offset for nbytes in model.input_bytes]
        self.output = lab.malloc(model.output_bytes + offset) + offset
        self.given = lab.dataset(self.inputs, model.input_bytes)
        self.wanted = lab.dataset([self.output], [model.output_bytes])
        nbytes = self._x.nbytes
        lab.call("rt.memcpy", self.inputs[0], nbytes, self._x.ctypes.data, nbytes, TO_DEVICE)

    def submit(self, stream: int) -> None:
        """Queue an execution. Raises DriverFault."""
        model = self._model
        self._lab.call("mdl.execute_async", model.number, self.given, self.wanted, stream)

    def execute(self) -> None:
        """Execute and wait, holding the GIL on a device. Raises DriverFault."""
        self._lab.call("mdl.execute", self._model.number, self.given, self.wanted)

    def is_right(self, gear: Anything = None) -> bool:
        """Whether the output is what it has to be at a gear, or at the largest size."""
        graph = self._model.graph
        y = np.empty(graph.shape(gear), np.float32)
        self._lab.call("rt.memcpy", y.ctypes.data, y.nbytes, self.output, y.nbytes, TO_HOST)
        return bool(np.array_equal(y, moved(numbers(y.shape), graph.layers)))
