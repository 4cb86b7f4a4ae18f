"""A fake of torch_npu, for tests: it is no Ascend card, and no simulator of one.

It has what the torch engine uses, and refuses what torch_npu's documents say is refused. Device
"npu" is real to torch: its tensors are apart from those of the CPU, cannot be mixed with them or
read by NumPy, and computations on them are done by torch's kernels for the CPU.

To be set by tests: `STATE`. Importing it cannot be undone in a process.
"""

import os
import threading
import weakref
from collections import Counter

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

if os.environ.get("FAKE_TORCH_NPU_WITHOUT_CANN"):
    raise ImportError("libhccl.so: cannot open shared object file: No such file or directory")

_GRANULE = 512
"""Bytes. What the caching allocator rounds blocks up to."""


class State:
    """The fake machine."""

    def __init__(self):
        self.reset()

    def reset(self):
        """Two cards, nothing allocated, nothing that fails."""
        self.devices = 2
        self.capacity = None
        """Bytes of a card; None: no end."""
        self.fails_with = None
        """CANN's return code of the next operation on a card."""
        self.compiled = []
        """The shapes of the inputs of each graph that torchair compiled."""
        self.captured = []
        """The shapes of the inputs of each capture of npugraph_ex."""
        self.allocations = Counter()
        """Card: how often its memory was asked for."""
        self.reserved = Counter()
        self.cached = Counter()
        """(pool, card, bytes): free blocks that the allocator keeps; most are of no pool (None)."""
        self.device = None
        """Additional behaviour of a card with these tensors: see `fake_cuda`."""

    def allocate(self, index, nbytes):
        """A block of the caching allocator, and where it is free again: what `give_back` takes.

        What is given back after a reset is of a machine that is no more, and counts for nothing.
        """
        block = -(-max(1, nbytes) // _GRANULE) * _GRANULE
        pool = self.device.pool() if self.device else None
        if self.cached[pool, index, block]:
            self.cached[pool, index, block] -= 1
            return self.cached, (pool, index, block)
        if self.capacity is not None and self.reserved[index] + block > self.capacity:
            raise torch.OutOfMemoryError(
                f"NPU out of memory. Tried to allocate {block} bytes (NPU {index})"
            )
        self.allocations[index] += 1
        self.reserved[index] += block
        return self.cached, (pool, index, block)

    def give_back(self, cached, block):
        cached[block] += 1

    def empty_cache(self):
        in_use = self.device.graphs if self.device else {}
        for pool, index, block in [*self.cached]:
            if not in_use.get(pool):
                self.reserved[index] -= block * self.cached.pop((pool, index, block))


STATE = State()


class NpuTensor(torch.Tensor):
    """A tensor on a card. `held` is where the fake keeps its elements."""

    @staticmethod
    def __new__(cls, held, device, owner=None):
        return torch.Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            dtype=held.dtype,
            device=device,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
        )

    def __init__(self, held, device, owner=None):
        """Create a tensor that is a view of `owner`, or has new memory without an owner."""
        self.held = held
        self.owner = owner
        # While torch.compile looks, nothing is allocated.
        if owner is None and not isinstance(held, FakeTensor):
            block = STATE.allocate(device.index or 0, held.numel() * held.element_size())
            weakref.finalize(self, STATE.give_back, *block)

    def __tensor_flatten__(self):
        return ["held"], self.device

    @staticmethod
    def __tensor_unflatten__(inner, device, size, stride):
        return NpuTensor(inner["held"], device)

    @classmethod
    def __torch_dispatch__(cls, op, types, args=(), kwargs=None):
        return _perform(op, args, kwargs or {})

    def __repr__(self):
        return f"NpuTensor({self.held!r}, device='{self.device}')"


def _perform(op, args, kwargs):
    """An operation of torch that has to do with a card."""
    if STATE.fails_with is not None:
        code, STATE.fails_with = STATE.fails_with, None
        raise RuntimeError(
            f"{op}:build/CMakeFiles/torch_npu.dir/compiler_depend.ts:47 NPU function error: "
            f"c10_npu::acl::AclrtSynchronizeStreamWithTimeout(stream), error code is {code}"
        )
    if STATE.device:
        return STATE.device.perform(op, args, kwargs)
    return perform(op, args, kwargs)


def perform(op, args, kwargs):
    """Call the function on a card that is healthy."""
    asked = kwargs.get("device")
    asked = None if asked is None else _known(torch.device(asked))
    if op is torch.ops.aten.copy_.default:
        _held(args[0]).copy_(_held(args[1]))
        return args[0]
    if op is torch.ops.aten._to_copy.default:
        where = asked or args[0].device
        moved = op(_held(args[0]), **{**kwargs, "device": torch.device("cpu")})
        return NpuTensor(moved, where) if where.type == "npu" else moved
    leaves = pytree.tree_leaves((args, kwargs))
    places = {leaf.device for leaf in leaves if isinstance(leaf, NpuTensor)}
    # A scalar on the CPU may be combined with tensors on a card.
    strangers = [
        leaf for leaf in leaves if type(leaf) in (torch.Tensor, torch.nn.Parameter) and leaf.dim()
    ]
    if len(places) > 1 or (places and strangers):
        raise RuntimeError(
            f"{op}: Expected all tensors to be on the same device, but found at least two devices"
        )
    where = asked if asked is not None and asked.type == "npu" else next(iter(places), None)
    if where is None:
        where = torch.device("npu", npu.current_device())
    given, named = pytree.tree_map(_as_held, (args, kwargs))
    result = op(*given, **named)
    if STATE.device:
        STATE.device.note(op, given, named, result)
    owners = [leaf for leaf in leaves if isinstance(leaf, NpuTensor)]
    return pytree.tree_map(
        lambda each: _wrapped(each, where, owners) if isinstance(each, torch.Tensor) else each,
        result,
    )


def _wrapped(held, where, owners):
    """Return the tensor on a card that has these elements, which may be a view's owner."""
    if not isinstance(held, FakeTensor) and held.numel():
        storage = held.untyped_storage().data_ptr()
        for owner in owners:
            if owner.held.untyped_storage().data_ptr() == storage:
                return NpuTensor(held, where, owner)
    return NpuTensor(held, where)


def _known(device):
    if device.type == "npu" and (device.index or 0) >= STATE.devices:
        raise RuntimeError(
            "NPU function error: c10_npu::SetDevice(device_id_), error code is 107001"
        )
    return device


def _held(tensor):
    return tensor.held if isinstance(tensor, NpuTensor) else tensor


def _as_held(value):
    if isinstance(value, torch.device):
        return torch.device("cpu")
    return _held(value)


class _Npu:
    """The module torch.npu."""

    def __init__(self):
        self._current = threading.local()

    def is_initialized(self):
        return True

    def is_available(self):
        return STATE.devices > 0

    def device_count(self):
        return STATE.devices

    def current_device(self):
        return getattr(self._current, "index", 0)

    def set_device(self, device):
        self._current.index = _known(torch.device("npu", device)).index

    def get_device_name(self, device=None):
        return "fake of torch_npu"

    def memory_stats(self, device=None):
        index = self.current_device() if device is None else device
        return {"num_device_alloc": STATE.allocations[index]}

    def empty_cache(self):
        STATE.empty_cache()

    def _is_in_bad_fork(self):
        return False

    def manual_seed_all(self, seed):
        pass


npu = _Npu()
_setup_privateuseone_for_python_backend("npu", backend_module=npu)


@torch._dynamo.register_backend(name="npugraph_ex")
def _capture(module, inputs, options=None):
    """The compiler npugraph_ex: a capture at the first execution, with fixed memory of results."""
    for name in options or {}:
        if name not in ("capture_error_mode", "capture_limit", "clone_input", "clone_output"):
            raise ValueError(f"npugraph_ex has no option {name}")
    if any(isinstance(each, torch.SymInt) for each in inputs):
        raise AssertionError("found a size that varies, expected dynamic=False")
    results = []

    def execute(*given):
        found = module.forward(*given)
        if not results:
            tensors = [each for each in given if isinstance(each, torch.Tensor)]
            STATE.captured.append([tuple(tensor.shape) for tensor in tensors])
            results.extend(found)
        else:  # a replay writes the results of the capture
            for kept, new in zip(results, found, strict=True):
                kept.copy_(new)
        return tuple(results)

    return execute


_LIBRARY = torch.library.Library("_", "IMPL")
_LIBRARY.fallback(lambda op, *args, **kwargs: _perform(op, args, kwargs), "PrivateUse1")
