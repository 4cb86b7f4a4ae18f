"""Loaded models: whose memory they lie in, which gear was set last, and how they come and go.

On a device the weights are in a block of memory and an execution reads them there. Here ONNX
Runtime has its own; the block holds the bytes of the file in their place, written at every load,
and executions look whether they are still those.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from itertools import count
from typing import Final

from ascend_simulator import process
from ascend_simulator.codes import Code, Refused
from ascend_simulator.enumerations import MallocPolicy
from ascend_simulator.memory.blocks import Block
from ascend_simulator.memory.ordering import Flights, Range
from ascend_simulator.models.dumps import Dumps, ModelDump
from ascend_simulator.models.graph import Graph
from ascend_simulator.models.om import Manifest, Om
from ascend_simulator.models.regions import Given, Region, overlap, region, release
from ascend_simulator.models.weights import CHANGED, WeightImage, Workspace
from ascend_simulator.process import Process
from ascend_simulator.streams.contexts import Context
from ascend_simulator.violations import declare, violate

DYNAMIC_WITH_MEMORY = declare(
    "model.dynamic-with-memory", "A model without a plan of memory is not loaded into a plan."
)
OTHER_CONTEXT = declare(
    "model.other-context", "A model is loaded, executed and unloaded in one context."
)
UNLOAD_BUSY = declare(
    "model.unload-while-executing", "A model is unloaded after waiting for its executions."
)


_FIRST_UNPLANNED: Final = 1 << 31
"""The id of the first model that has no plan of memory."""


@dataclass(eq=False)
class Model:
    """One load of a file."""

    number: int
    """What pyACL calls its id; the first is 1."""
    context: Context
    manifest: Manifest
    graph: Graph
    image: WeightImage
    work: Region
    weights: Region
    workspace: Workspace
    """What is known of the block that `work` is in, shared by all models there."""
    dump: ModelDump | None = None
    """What is dumped of its executions; None: nothing."""
    gear: int | None = None
    """Place of the gear that was set last, by anyone; None until then."""
    gear_at: dict[int, int] = field(default_factory=dict)
    """Address of a gear buffer -> place of the gear that a setter wrote there last."""
    aipp_at: dict[int, bytes] = field(default_factory=dict)
    """Address of a buffer for the parameters of dynamic AIPP -> what a setter wrote there last."""
    flights: Flights = field(default_factory=Flights)

    @property
    def name(self) -> str:
        """For people."""
        return f"model {self.number}"


class Models:
    """The loaded models: a part of the process."""

    def __init__(self) -> None:
        # Never 0, and never used again. Those without a plan of memory are numbered apart.
        self._numbers = {True: count(1), False: count(_FIRST_UNPLANNED)}
        self._models: dict[int, Model] = {}

    def get(self, number: int, what: str) -> Model:
        """The model. Raises Refused GE_EXEC_MODEL_ID_INVALID."""
        model = self._models.get(number)
        if model is None:
            raise Refused(
                Code.GE_EXEC_MODEL_ID_INVALID, f"{what}: model {number}: it is not loaded"
            )
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
        """The id of a new model. Blocks for as long as it takes to open its graph.

        file: its name without suffix, by which dumps are asked for; "" of one in memory.
        work, weights: memory of the caller, which `lean` lets be smaller by the share of inputs
        and outputs; None or an address of 0 lets the system allocate by `policy`.
        Violates DYNAMIC_WITH_MEMORY, what `region` does, `claims.BUSY` where the weights of a model
        that executes would be written, and `weights.CHANGED` where those of another file would.
        Raises Refused: RT_CONTEXT_NULL, RT_SOC_VERSION for a file for another chip and
        RT_NO_STREAM_RESOURCE (both inferences), GE_PARAM_INVALID where memory given is too small,
        GE_MEMORY_ALLOCATION, GE_LOAD_MODEL for a graph that onnxruntime does not take.
        """
        now = process.current()
        context = now.context()
        manifest = om.manifest
        now.faults.strike("load")
        if manifest.soc != now.settings.soc:
            text = f"load: found a model for {manifest.soc}, expected {now.settings.soc}"
            raise Refused(Code.RT_SOC_VERSION, text)
        planned = manifest.family != "dynamic"
        if not planned and work is not None:
            violate(
                DYNAMIC_WITH_MEMORY,
                "load: found memory for a model whose shapes are free: it allocates as it runs. "
                "Compile it with gears",
            )
        work_bytes = manifest.lean_work_bytes if lean else manifest.work_bytes
        number = next(self._numbers[planned])
        name = f"model {number}"
        image = WeightImage(om.graph, manifest.weight_bytes)
        asked = (
            (f"{name} (workspace)", (work or Given()) if planned else Given(), work_bytes),
            (f"{name} (weights)", weights or Given(), manifest.weight_bytes),
        )
        regions: list[Region] = []
        with now.lock:  # before memory is taken, so that a load without streams leaves nothing
            now.stream_budget.take(context.device, f"load of {name}", now.settings.model_streams)
        try:
            for holder, given, needed in asked:
                regions.append(region(now, holder, given, needed, policy))
            own_work, own_weights = regions
            self._check_weights_kept(name, own_work, (own_weights.ptr, image.nbytes), image)
            if own_weights.nbytes:
                # Every load writes them, also where another load of the file has: so not while
                # that executes.
                what = f"load of {name} (weights)"
                now.claims.host_access(own_weights.ptr, image.nbytes, write=True, what=what)
                image.write(om.graph, own_weights.content)
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
        """The model is gone, the caller's memory as it was.

        Violates OTHER_CONTEXT, UNLOAD_BUSY and `weights.CHANGED`. Raises as `get` does, and
        Refused RT_CONTEXT_NULL.
        """
        now = process.current()
        model = self.get(number, "unload")
        check_context(now, model, "unload")
        with now.lock:
            busy = model.flights.pending(now.streams.ordering)
        if busy:
            violate(UNLOAD_BUSY, f"unload: {model.name}: found executions nobody waited for")
        if model.weights.nbytes:
            model.image.check_all(model.weights.content, model.name)
        with now.lock:
            del self._models[number]
            if model.context.contents.pop(number, None) is not None:
                now.stream_budget.give(model.context.device, now.settings.model_streams)
        for each in (model.work, model.weights):
            release(now, each)

    def _check_weights_kept(self, name: str, work: Region, own: Range, image: WeightImage) -> None:
        """Whether all weights stay what they are when this model is loaded, and when it executes.

        own: where its weights go, which may be those of another load of the same file.
        """
        for other in list(self._models.values()):
            theirs = other.weights.ptr, other.image.nbytes
            shared = theirs == own and other.image.is_same(image)
            if overlap(work.range, theirs) or overlap(own, other.work.range):
                violate(
                    CHANGED, f"load: {name}: found a workspace over weights, of it and {other.name}"
                )
            elif overlap(own, theirs) and not shared:
                violate(CHANGED, f"load: {name}: found the weights of {other.name} there")

    def _workspace(self, block: Block) -> Workspace:
        for model in self._models.values():
            if model.work.block is block:
                return model.workspace
        return Workspace(block)

    def numbers(self) -> frozenset[int]:
        """Of all that are loaded."""
        return frozenset(self._models)

    def live(self) -> list[str]:
        """Nothing: models are named among what is left in their contexts."""
        return []

    def close(self) -> None:
        """Forget them; their memory goes with the process."""
        self._models.clear()


def models() -> Models:
    """Those of the process."""
    return process.current().part(Models)


def check_context(now: Process, model: Model, what: str) -> None:
    """The thread must have the model's context. Violates OTHER_CONTEXT.

    Raises Refused: RT_CONTEXT_NULL, and RT_MODEL_CONTEXT after a violation that lenient mode lets
    pass.
    """
    if now.context() is not model.context:
        text = f"{what}: {model.name}: found another context than that of its load"
        violate(OTHER_CONTEXT, text)
        raise Refused(Code.RT_MODEL_CONTEXT, text)


def _graph(now: Process, om: Om) -> Graph:
    try:
        return Graph.shared(om.digest, om.graph, now.settings.threads)
    except Exception as error:  # onnxruntime's: the file was made beside another version of it
        raise Refused(
            Code.GE_LOAD_MODEL, f"load: onnxruntime cannot execute it: {error}"
        ) from error
