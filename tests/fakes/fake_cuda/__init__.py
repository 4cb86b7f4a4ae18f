"""A fake GPU for tests, which executes torch's kernels for the CPU.

torch lets a process have one device of another's making, so this is the fake of torch_npu's, under
the name "npu", with what `torch.cuda` has besides: streams, recorded graphs, pools. It is stricter
than a GPU where a GPU would be silent or late:

- A queued copy to the host leaves garbage there until its stream was waited for.
- What a queued copy to the device reads must not change until then.
- While a stream is captured nothing may wait for the device, and nothing that the host gives is
  copied; what breaks a capture makes its end fail, too, after which its pool takes no other
  and its graph must stay.
- A replay writes where the capture wrote, computed anew.
- An index out of range is a failed assertion on the device, after which every call fails for good.

To be set by tests: `MACHINE`, besides `torch_npu.STATE`.
"""

import contextlib
import itertools
import threading
import weakref

import torch
import torch_npu
from torch.utils import _pytree as pytree
from torch_npu import STATE, NpuTensor, npu

from fake_cuda.libcuda import Library

_ASSERT = (
    "CUDA error: device-side assert triggered\n"
    "CUDA kernel errors might be asynchronously reported at some other API call"
)
_NOT_CAPTURED = "CUDA error: operation not permitted when stream is capturing"
_BROKEN_CAPTURE = "CUDA error: operation failed due to a previous error during capture"
_WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero")
"""Operations that read a result on the host."""


class Machine:
    """The GPU's state, of all threads."""

    def __init__(self):
        self.reset()

    def reset(self):
        """Two GPUs, nothing allocated, nothing that fails."""
        STATE.reset()
        STATE.device = self
        self.lost = None
        """The error that every call raises; None until the device is broken."""
        self.capture = None
        self.replays = 0
        self.graphs = {}
        """Pool: how many graphs allocate there."""
        self.recording = {}
        """Pool: the graph whose capture failed, which the allocator treats as still in progress."""
        self.pins = True
        """True if the system can pin memory."""
        self.pinned = {}
        """Address: bytes of pinned memory."""
        self._pools = 0

    def new_pool(self):
        self._pools += 1
        return (0, self._pools)

    def pool(self):
        return self.capture.pool if self.capture else None

    def check(self):
        if self.lost is not None:
            raise torch.AcceleratorError(self.lost)

    def perform(self, op, args, kwargs):
        self.check()
        name = op.overloadpacket.__name__
        with self.asserting():
            if op is torch.ops.aten.copy_.default:
                return self._copy(*args)
            is_copy = op is torch.ops.aten._to_copy.default
            if is_copy and _crosses(args[0], kwargs.get("device")):
                npu.current_stream().synchronize()
            if self.capture and name in _WAITING:
                self.capture.fail()
            result = torch_npu.perform(op, args, kwargs)
            if self.capture and is_copy:
                given, more = args[0].held, {**kwargs, "device": torch.device("cpu")}
                self.note(op, (given,), more, result.held)
            return result

    def note(self, op, args, kwargs, result):
        """The operation was executed; where it is captured, it will be again."""
        if self.capture:
            self.capture.steps.append(lambda: _write(result, op(*args, **kwargs)))

    @contextlib.contextmanager
    def asserting(self):
        try:
            yield
        except IndexError:
            self.lost = _ASSERT
            self.check()

    def _copy(self, target, source, non_blocking=False):
        to_device, of_device = (isinstance(each, NpuTensor) for each in (target, source))
        if self.capture:
            if not (to_device and of_device):
                self.capture.fail()
            self.capture.steps.append(lambda: target.held.copy_(source.held))
        stream = npu.current_stream()
        if of_device and not to_device and non_blocking:
            held = source.held
            # On a GPU the copy is made where the stream has got to, not when it is waited for.
            elements = held.clone()
            target.view(torch.uint8).fill_(0xA5) if target.numel() and target.dim() else None
            stream.pending.append(lambda: target.copy_(elements))
            return target
        if to_device != of_device and not non_blocking:
            stream.synchronize()
        (target.held if to_device else target).copy_(source.held if of_device else source)
        if to_device and not of_device and non_blocking:
            before = source.clone()

            def unchanged():
                if not torch.equal(source.view(torch.uint8), before.view(torch.uint8)):
                    raise AssertionError("the source of a queued copy was changed before it ended")

            stream.pending.append(unchanged if source.dim() else lambda: None)
        return target


MACHINE = Machine()
LIBRARY = Library(MACHINE)


def _crosses(tensor, device):
    """Return whether a copy is between host and device, which a graph cannot contain."""
    there = device is None or torch.device(device).type == "npu"
    return not (isinstance(tensor, NpuTensor) and there)


def _write(old, new):
    """The elements of new results where those of the captured execution are."""
    for before, after in zip(pytree.tree_leaves(old), pytree.tree_leaves(new), strict=True):
        if isinstance(before, torch.Tensor) and before.data_ptr() != after.data_ptr():
            before.copy_(after)


class Stream:
    """One of either kind."""

    def __init__(self, device=None):
        self.device = torch.device(device or "npu:0")
        self.pending = []

    def synchronize(self):
        MACHINE.check()
        if MACHINE.capture and MACHINE.capture.stream is self:
            MACHINE.capture.fail()
        pending, self.pending[:] = [*self.pending], []
        for step in pending:
            step()


_DEFAULT = Stream()
_POOL = itertools.cycle([Stream() for _ in range(32)])
_EXTERNAL = {}


def pooled(device=None):
    """torch.cuda.Stream, one of 32 that all callers share."""
    return next(_POOL)


def external(handle, device=None):
    """torch.cuda.ExternalStream."""
    if not handle:
        raise AssertionError("found no stream, expected the handle of one")
    return _EXTERNAL.setdefault((device, handle), Stream(device))


_streams = threading.local()


@contextlib.contextmanager
def stream(chosen):
    before = npu.current_stream()
    _streams.current = chosen
    try:
        yield
    finally:
        _streams.current = before


class _Capture:
    """One that is under way."""

    def __init__(self, pool, stream):
        self.pool, self.stream = pool, stream
        self.steps = []
        self.broken = False

    def fail(self):
        self.broken = True
        raise torch.AcceleratorError(_NOT_CAPTURED)


class CUDAGraph:
    """torch.cuda.CUDAGraph."""

    def __init__(self):
        self.steps = None

    def replay(self):
        MACHINE.check()
        if self.steps is None:
            raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
        MACHINE.replays += 1
        with MACHINE.asserting():
            for step in self.steps:
                step()


@contextlib.contextmanager
def graph(into, pool=None, stream=None, capture_error_mode="global"):
    """torch.cuda.graph."""
    if MACHINE.capture is not None:
        raise RuntimeError("found a second capture in this process, expected one at a time")
    if stream is None or stream is _DEFAULT:
        raise RuntimeError("CUDA graphs must be captured on a non-default stream.")
    MACHINE.check()
    if pool in MACHINE.recording:
        raise RuntimeError("beginAllocateToPool: already recording to mempool_id")
    if any(broken() is None for broken in MACHINE.recording.values()):
        raise AssertionError("a graph is gone whose capture failed, and which the allocator asks")
    STATE.empty_cache()
    capture = MACHINE.capture = _Capture(pool, stream)
    MACHINE.graphs[pool] = MACHINE.graphs.get(pool, 0) + 1
    weakref.finalize(into, _leave, MACHINE.graphs, pool)
    try:
        with npu.stream(stream):
            yield
    finally:
        MACHINE.capture = None
        if capture.broken:  # torch: capture_end raises in addition to the first error
            MACHINE.recording[pool] = weakref.ref(into)
            raise torch.AcceleratorError(_BROKEN_CAPTURE)
    into.steps = capture.steps


def _leave(graphs, pool):
    """Release one graph; without graphs the pool's memory is unused."""
    graphs[pool] -= 1


npu.Stream = pooled
npu.ExternalStream = external
npu.stream = stream
npu.current_stream = lambda: getattr(_streams, "current", _DEFAULT)
npu.CUDAGraph = CUDAGraph
npu.graph = graph
npu.graph_pool_handle = MACHINE.new_pool
