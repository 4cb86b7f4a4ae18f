"""See `ge`: sessions, which execute graphs on a stream of the simulator."""

import sys
import traceback
import weakref

import numpy as np

from ascend_simulator import process
from ascend_simulator.codes import Code, Refused
from ascend_simulator.streams.tasks import Task
from ge import Misuse
from ge.allocator import Allocator
from ge.ge_global import _ALLOCATORS, _Life, check_strings
from ge.graph import Graph
from ge.graph.tensor import NUMPY, Tensor
from ge.graph.types import Placement

_WORKSPACE = 4096
"""Bytes that each execution takes and writes all over: the fake has no use for them."""

_KEPT = 1024
"""Bytes that a graph takes with its first execution, and has until it is removed."""

_MUST_BE_ALIGNED = 64
_GEARS = range(2, 101)

_GE_OF = {np.dtype(numpy): number for number, numpy in NUMPY.items()}


class _Registered:
    """GE-PY's adapter to C, which prints exceptions of callbacks and treats them as no memory."""

    def __init__(self, allocator):
        self._reference = weakref.ref(allocator)
        self._blocks = {}

    @property
    def _allocator(self):
        """The documentation requires callers to keep it, although GE-PY keeps it as well."""
        allocator = self._reference()
        if allocator is None:
            raise Misuse("register_external_allocator: found the allocator gone, expected it kept")
        return allocator

    def malloc(self, size):
        """Key and address; 0 for none."""
        allocator = self._allocator
        try:
            block = allocator.malloc(size)
        except Exception:
            traceback.print_exc(file=sys.stderr)
            return 0, 0
        address = block.addr if block else 0
        if address % _MUST_BE_ALIGNED:
            raise Misuse(f"Allocator.malloc: found {address:#x}, expected a multiple of 64")
        self._blocks[id(block)] = block
        return id(block), address

    def free(self, key):
        block = self._blocks.pop(key, None)
        if block is not None:
            # Fails if the memory was freed while GE used it.
            process.current().memory.resolve(block.addr, 1, want="device", write=False)
            self._allocator.free(block)

    @property
    def taken(self):
        return len(self._blocks)


class Session:
    """Graphs by their numbers."""

    def __init__(self, options=None):
        if options is not None and not isinstance(options, dict):
            raise TypeError("option must be a dictionary")
        check_strings(options or {})
        self.options = options or {}
        self._graphs = {}
        self._kept = {}
        _Life.sessions += 1

    def __del__(self):
        if hasattr(self, "_graphs"):
            _Life.sessions -= 1

    def __copy__(self):
        raise RuntimeError("Session does not support copy")

    def add_graph(self, graph_id, add_graph, options=None):
        _check_number(graph_id)
        if not isinstance(add_graph, Graph):
            raise TypeError("Add_graph must be a Graph")
        if options is not None and not isinstance(options, dict):
            raise TypeError("options must be a dictionary")
        options = options or {}
        check_strings(options)
        if not _Life.initialized or graph_id in self._graphs or not _gears_are_sound(options):
            raise RuntimeError(f"Failed to add graph, graph_id is {graph_id}")
        self._graphs[graph_id] = (add_graph.computation, options)
        self._kept[graph_id] = None
        return 0

    def remove_graph(self, graph_id):
        _check_number(graph_id)
        if self._graphs.pop(graph_id, None) is None:
            raise RuntimeError(f"Failed to remove graph, graph_id is {graph_id}")
        if (give_back := self._kept.pop(graph_id)) is not None:
            give_back()

    def register_external_allocator(self, stream, allocator):
        if not isinstance(stream, int):
            raise TypeError("stream must be an integer")
        if not isinstance(allocator, Allocator):
            raise TypeError("allocator must be an Allocator instance")
        _ALLOCATORS[stream] = _Registered(allocator)

    def unregister_external_allocator(self, stream):
        if not isinstance(stream, int):
            raise TypeError("stream must be an integer")
        if stream not in _ALLOCATORS:
            raise RuntimeError(f"Failed to unregister allocator for stream 0x{stream:x}")
        process.current().stream(stream, "unregister_external_allocator")  # it must be alive
        if _ALLOCATORS[stream].taken:
            raise Misuse("unregister_external_allocator: found memory of it in use, expected none")
        del _ALLOCATORS[stream]

    def run_graph_with_stream_async(self, graph_id, stream, inputs):
        _check_number(graph_id)
        if not isinstance(stream, int):
            raise TypeError("Stream must be an integer")
        if not isinstance(inputs, list):
            raise TypeError("inputs must be a list of Tensor")
        if not all(isinstance(each, Tensor) for each in inputs):
            raise TypeError("All elements in inputs must be the type of Tensor")
        failed = RuntimeError(f"Failed to run graph with stream async, graph_id is {graph_id}")
        if graph_id not in self._graphs:
            raise failed
        now = process.current()
        there = now.stream(stream, "run_graph_with_stream_async")
        if not now.context().is_default:
            raise Misuse("run_graph_with_stream_async: found a stream of a context of its own")
        if any(each.placement is not Placement.PLACEMENT_DEVICE for each in inputs):
            raise Misuse("run_graph_with_stream_async: found inputs on the host")
        allocator = _ALLOCATORS.get(stream)
        if allocator is None:
            raise Misuse("run_graph_with_stream_async: found no allocator, GE would use its own")
        computation, options = self._graphs[graph_id]
        if not _shapes_are_gears(computation, options, inputs):
            raise failed
        if self._kept[graph_id] is None:
            key, address = allocator.malloc(_KEPT)
            if not address:
                raise failed
            self._kept[graph_id] = lambda: allocator.free(key)
        return _run(now, there, allocator, computation, inputs, failed)


def _run(now, stream, allocator, computation, inputs, failed):
    taken = []

    def take(nbytes):
        key, address = allocator.malloc(max(1, nbytes))
        if not address:
            for each in taken:
                allocator.free(each)
            raise failed
        taken.append(key)
        return address

    # The fake learns the shapes of results by computing them now; on the device they are written
    # by the stream alone.
    fed = [
        now.memory.resolve(each.address, each.nbytes, want="device", write=False)
        .view(NUMPY[each.data_type])
        .reshape(each.shape)
        for each in inputs
    ]
    names = [value.name for value in computation.get_inputs()]
    try:
        results = computation.run(None, dict(zip(names, fed, strict=True)))
    except Exception:
        results = None
    workspace = take(_WORKSPACE)
    places = [take(result.nbytes) for result in results or ()]

    def execute():
        now.memory.resolve(workspace, _WORKSPACE, want="device", write=True)[:] = 0xA5
        now.faults.strike("execute")
        if results is None:
            raise Refused(Code.RT_MODEL_EXECUTE, "the graph failed")
        for place, result in zip(places, results, strict=True):
            target = now.memory.resolve(place, result.nbytes, want="device", write=True)
            target[:] = np.ascontiguousarray(result).reshape(-1).view(np.uint8)

    stream.submit(
        Task(
            execute,
            [(each.address, each.nbytes) for each in inputs],
            [
                (workspace, _WORKSPACE),
                *((place, r.nbytes) for place, r in zip(places, results or (), strict=False)),
            ],
            "GE graph",
        )
    )
    # The workspace is freed while the stream uses it: later tasks of the stream may reuse it.
    allocator.free(taken.pop(0))
    return [
        Tensor.on_device(place, result, _GE_OF[result.dtype], lambda key=key: allocator.free(key))
        for place, result, key in zip(places, results or (), taken, strict=True)
    ]


def _check_number(graph_id):
    if not isinstance(graph_id, int):
        raise TypeError("Graph_id must be an integer")


def _pattern(options):
    parts = (part.rpartition(":") for part in options["ge.inputShape"].split(";"))
    return {name: [int(dim) for dim in dims.split(",") if dim] for name, _, dims in parts}


def _gears_are_sound(options):
    if "ge.dynamicDims" not in options:
        return True
    if options.get("ge.dynamicNodeType") != "1" or "ge.inputShape" not in options:
        return False
    gears = [gear.split(",") for gear in options["ge.dynamicDims"].split(";")]
    places = sum(dims.count(-1) for dims in _pattern(options).values())
    return len(gears) in _GEARS and all(len(gear) == places for gear in gears)


def _shapes_are_gears(computation, options, inputs):
    if "ge.dynamicDims" not in options:
        return True
    pattern, found = _pattern(options), []
    for value, given in zip(computation.get_inputs(), inputs, strict=True):
        pairs = zip(pattern[value.name], given.shape, strict=True)
        found += [str(size) for dim, size in pairs if dim == -1]
    return ",".join(found) in options["ge.dynamicDims"].split(";")
