"""Loaded models: their memory, the gear that was set last, loading and unloading.

On a device an execution reads the weights from a block of memory. In the simulator, ONNX Runtime
has its own copy of the weights, and the block contains the bytes of the file. Every load writes
these bytes, and executions check that they are unchanged. The content of the workspace is
undefined.
"""

from __future__ import annotations

import time
import zlib
from dataclasses import dataclass, field
from itertools import count
from threading import Lock
from typing import Final

import numpy as np

from ascend_simulator import process
from ascend_simulator.codes import Code, MallocPolicy, Refused
from ascend_simulator.memory.blocks import Block, Bytes, PendingExecutions, Range
from ascend_simulator.models.dumps import Dumps, ModelDump
from ascend_simulator.models.graph import Graph
from ascend_simulator.models.om import Manifest, Om
from ascend_simulator.models.regions import Given, Region, overlap, region, release
from ascend_simulator.process import Process
from ascend_simulator.streams.contexts import Context
from ascend_simulator.violations import declare, violate

CHANGED = declare(
    "model.weights-changed", "Only a load of the same file may write a model's weight block."
)

_SLICE: Final = 256 * 1024


class WeightImage:
    """The bytes of a weight block: the bytes of the file's graph, truncated, or padded with zeros.

    Each execution checks one slice of 256 KiB (0.1 ms), in turn, and the unload checks all slices.
    So every execution checks small weights completely, and a change in large weights is found at
    the unload at the latest. Safe from any thread.
    """

    def __init__(self, graph: bytes, nbytes: int) -> None:
        self.nbytes = nbytes
        whole = np.zeros(nbytes, np.uint8)
        _fill(whole, graph)
        self._sums = [_sum(whole[first : first + _SLICE]) for first in range(0, nbytes, _SLICE)]
        self._lock = Lock()
        self._next = 0

    def write(self, graph: bytes, target: Bytes) -> None:
        """Fill `target`, which has `nbytes` or more, like a load."""
        _fill(target[: self.nbytes], graph)

    def is_same(self, other: WeightImage) -> bool:
        """Return whether the other image has the same bytes."""
        return self.nbytes == other.nbytes and self._sums == other._sums

    def check_next(self, content: Bytes, name: str) -> None:
        """Check CHANGED for the next slice."""
        if not self._sums:
            return
        with self._lock:
            index, self._next = self._next, (self._next + 1) % len(self._sums)
        self._check(content, index, name)

    def check_all(self, content: Bytes, name: str) -> None:
        """Check CHANGED for every slice."""
        for index in range(len(self._sums)):
            self._check(content, index, name)

    def _check(self, content: Bytes, index: int, name: str) -> None:
        first = index * _SLICE
        end = min(first + _SLICE, self.nbytes)
        if _sum(content[first:end]) != self._sums[index]:
            violate(CHANGED, f"{name}: its weights were changed in bytes {first:,} to {end:,}")


def _fill(target: Bytes, graph: bytes) -> None:
    source = np.frombuffer(graph, np.uint8)[: target.nbytes]
    target[: source.nbytes] = source
    target[source.nbytes :] = 0


def _sum(piece: Bytes) -> int:
    return zlib.crc32(piece.data)


PATTERN: Final = 0xB7
"""The byte that fills a workspace, and the outputs of a failed execution."""


class Workspace:
    """A block of memory that models use as workspace, completely or in part.

    Each execution must find the fill pattern. Filling some hundred MiB takes longer than a small
    execution, so the block is only filled if it may have been written since the last fill.
    """

    def __init__(self, block: Block) -> None:
        self._block = block
        self._own = 0
        self._filled = (0, 0)
        self._others = -1

    def others(self) -> int:
        """Return the number of writes so far that were not executions. Needs the process's lock."""
        return self._block.writes - self._own

    def submitted(self) -> None:
        """Count a submitted execution, which fills the block. Needs the process's lock."""
        self._own += 1

    def fill(self, ptr: int, nbytes: int, others: int) -> None:
        """Fill these bytes with the pattern.

        `others` is the result of the method `others` when the execution was submitted.
        """
        first = ptr - self._block.start
        end = first + nbytes
        if others == self._others and self._filled[0] <= first and end <= self._filled[1]:
            return
        self._block.content[first:end].fill(PATTERN)
        self._filled, self._others = (first, end), others


DYNAMIC_WITH_MEMORY = declare(
    "model.dynamic-with-memory",
    "Do not load a model without a memory plan into the caller's memory.",
)
OTHER_CONTEXT = declare("model.other-context", "Load, execute and unload a model in one context.")
UNLOAD_BUSY = declare(
    "model.unload-while-executing", "Wait for a model's executions before unloading it."
)


_FIRST_UNPLANNED: Final = 1 << 31
"""The id of the first model without a memory plan."""


@dataclass(eq=False)
class Model:
    """One loaded model file."""

    number: int
    """The model id of pyACL; the first is 1."""
    context: Context
    manifest: Manifest
    graph: Graph
    image: WeightImage
    work: Region
    weights: Region
    workspace: Workspace
    """The state of the block that contains `work`, shared by all models in that block."""
    dump: ModelDump | None = None
    """The dump of the model's executions; None if they are not dumped."""
    gear: int | None = None
    """Index of the gear that was set last; None if no gear was set."""
    gear_at: dict[int, int] = field(default_factory=dict)
    """Index of the gear that a setter last wrote into a gear buffer, by address of the buffer."""
    aipp_at: dict[int, bytes] = field(default_factory=dict)
    """The bytes that a setter last wrote into a buffer for dynamic AIPP, by address."""
    executions: PendingExecutions = field(default_factory=PendingExecutions)

    @property
    def name(self) -> str:
        """The name in messages."""
        return f"model {self.number}"


class Models:
    """The loaded models: a `Part` of the process."""

    def __init__(self) -> None:
        # Ids are never 0 and never reused. Models without a memory plan have their own sequence.
        self._numbers = {True: count(1), False: count(_FIRST_UNPLANNED)}
        self._models: dict[int, Model] = {}

    def next_number(self, *, planned: bool) -> int:
        """Return a new id. Bundles and models without a memory plan share one sequence of ids."""
        return next(self._numbers[planned])

    def get(self, number: int, what: str) -> Model:
        """Return the model. Raises Refused GE_EXEC_MODEL_ID_INVALID."""
        model = self._models.get(number)
        if model is None:
            raise Refused(Code.GE_EXEC_MODEL_ID_INVALID, f"{what}: model {number}: not loaded")
        return model

    def load(
        self,
        om: Om,
        work: Given | None = None,
        weights: Given | None = None,
        *,
        lean: bool = False,
        file: str = "",
        policy: int = MallocPolicy.ACL_MEM_MALLOC_HUGE_FIRST,
    ) -> int:
        """Load a model and return its id. Blocks while the graph is opened.

        Args:
            om: the model file.
            work, weights: memory of the caller; None or an address of 0 lets the system allocate.
            lean: let the caller's memory be smaller by the share of inputs and outputs.
            file: the file name without suffix, by which dumps select models; "" for a model in
                memory.
            policy: how the system allocates.

        Checks DYNAMIC_WITH_MEMORY and the rules of `region`. Also checks `claims.BUSY` (the load
        would write the weights of a model that executes) and `CHANGED` (the load would overwrite
        the weights of another file).

        Raises Refused: RT_CONTEXT_NULL, RT_SOC_VERSION for another chip's file and
        RT_NO_STREAM_RESOURCE (both inferences), GE_PARAM_INVALID for given memory that is too
        small, GE_MEMORY_ALLOCATION, GE_LOAD_MODEL for a graph that onnxruntime does not accept.
        """
        now = process.current()
        context = now.context()
        manifest = om.manifest
        now.faults.strike("load")
        _check_file(now, manifest, work)
        planned = manifest.family != "dynamic"
        work_bytes = manifest.lean_work_bytes if lean else manifest.work_bytes
        number = self.next_number(planned=planned)
        name = f"model {number}"
        image = WeightImage(om.graph, manifest.weight_bytes)
        asked = (
            (f"{name} (workspace)", (work or Given()) if planned else Given(), work_bytes),
            (f"{name} (weights)", weights or Given(), manifest.weight_bytes),
        )
        regions: list[Region] = []
        with now.lock:  # before memory is allocated, so that a failure leaves none behind
            now.stream_budget.take(context.device, f"load of {name}", now.settings.model_streams)
        try:
            for holder, given, needed in asked:
                regions.append(region(now, holder, given, needed, policy))
            own_work, own_weights = regions
            self._check_weights_kept(name, own_work, (own_weights.ptr, image.nbytes), image)
            if own_weights.nbytes:
                _write_weights(now, name, image, om.graph, own_weights)
            graph = _graph(now, om)
            dump = now.part(Dumps).of(om.graph, file, now.settings.threads)
        except BaseException:
            for each in regions:
                release(now, each)
            with now.lock:
                now.stream_budget.give(context.device, now.settings.model_streams)
            raise
        time.sleep(now.settings.load_ms / 1000)
        with now.lock:
            workspace = self._workspace(own_work.block)
            self._models[number] = Model(
                number, context, manifest, graph, image, own_work, own_weights, workspace, dump
            )
            context.contents[number] = name
        return number

    def unload(self, number: int) -> None:
        """Unload the model; the caller's memory is unchanged.

        Checks OTHER_CONTEXT, UNLOAD_BUSY and `CHANGED`. Raises like `get`, and Refused
        RT_CONTEXT_NULL.
        """
        now = process.current()
        model = self.get(number, "unload")
        check_context(now, model, "unload")
        with now.lock:
            busy = model.executions.pending(now.streams.ordering)
        if busy:
            violate(
                UNLOAD_BUSY,
                f"unload: {model.name}: unfinished executions use it; wait for their streams first",
            )
        if model.weights.nbytes:
            model.image.check_all(model.weights.content, model.name)
        with now.lock:
            del self._models[number]
            if model.context.contents.pop(number, None) is not None:
                now.stream_budget.give(model.context.device, now.settings.model_streams)
        for each in (model.work, model.weights):
            release(now, each)

    def _check_weights_kept(self, name: str, work: Region, own: Range, image: WeightImage) -> None:
        """Check that loading and executing this model changes no model's weights.

        `own` is the range of this model's weights. Another load of the same file may share it.
        """
        for other in list(self._models.values()):
            theirs = other.weights.ptr, other.image.nbytes
            shared = theirs == own and other.image.is_same(image)
            if overlap(work.range, theirs) or overlap(own, other.work.range):
                violate(
                    CHANGED, f"load: {name}: a workspace overlaps weights, of it and {other.name}"
                )
            elif overlap(own, theirs) and not shared:
                violate(CHANGED, f"load: {name}: its weights overlap the weights of {other.name}")

    def _workspace(self, block: Block) -> Workspace:
        for model in self._models.values():
            if model.work.block is block:
                return model.workspace
        return Workspace(block)

    def numbers(self) -> frozenset[int]:
        """Return the ids of all loaded models."""
        return frozenset(self._models)

    def live(self) -> list[str]:
        """Return no names: models are reported as contents of their contexts."""
        return []

    def close(self) -> None:
        """Remove the models; the process releases their memory."""
        self._models.clear()


def models() -> Models:
    """Return the loaded models of the process."""
    return process.current().part(Models)


def check_context(now: Process, model: Model, what: str) -> None:
    """Check OTHER_CONTEXT: the model's context must be current in the thread.

    Raises Refused: RT_CONTEXT_NULL; RT_MODEL_CONTEXT after a violation in lenient mode.
    """
    if now.context() is not model.context:
        text = f"{what}: {model.name}: the current context is not the context of the load"
        violate(OTHER_CONTEXT, text)
        raise Refused(Code.RT_MODEL_CONTEXT, text)


def _check_file(now: Process, manifest: Manifest, work: Given | None) -> None:
    """Check that the chip executes the file, and that the model can use the caller's memory."""
    if manifest.soc != now.settings.soc:
        text = f"load: found a model for {manifest.soc}, expected {now.settings.soc}"
        raise Refused(Code.RT_SOC_VERSION, text)
    if manifest.family == "dynamic" and work is not None:
        violate(
            DYNAMIC_WITH_MEMORY,
            "load: found memory for a model with free shapes, which allocates at run time. "
            "Compile it with gears",
        )


def _write_weights(
    now: Process, name: str, image: WeightImage, graph: bytes, weights: Region
) -> None:
    # Every load writes the weights, even those shared with another load of the file, so that model
    # must not be executing.
    what = f"load of {name} (weights)"
    now.claims.host_access(weights.ptr, image.nbytes, write=True, what=what)
    image.write(graph, weights.content)


def _graph(now: Process, om: Om) -> Graph:
    try:
        return Graph.shared(om.digest, om.graph, now.settings.threads)
    except Exception as error:  # onnxruntime raises it for a file compiled with another version
        raise Refused(
            Code.GE_LOAD_MODEL, f"load: onnxruntime cannot execute it: {error}"
        ) from error
