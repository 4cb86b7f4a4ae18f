"""Random batches of requests: blocks of one tensor `x` with their layout."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from hypothesis import strategies as st

from ge_runtime.batching.admission import Block
from ge_runtime.batching.ragged import Layout
from ge_runtime.specs import DType, TensorSpec

AXES = ("a", "b", "c")
FIXED_SIZE = [dtype for dtype in DType if dtype is not DType.BYTES]
GUARD = 64


@dataclass(frozen=True)
class RequestBatch:
    spec: TensorSpec
    blocks: list[Block]
    pad: np.generic
    answered: frozenset[str] = frozenset()
    rows: int = 0
    extents: tuple[tuple[str, int], ...] = ()
    packed: str | None = None

    @property
    def layout(self):
        return Layout.of(
            [
                block_of(block.tensors, block.sizes, block.lengths, answered=self.answered)
                for block in self.blocks
            ],
            rows=self.rows,
            extents=dict(self.extents),
            packed=self.packed,
        )

    def but(self, **changes):
        return replace(self, **changes)

    def data(self):
        """Return each row as an array, cut at its ends."""
        for block in self.blocks:
            for row in range(block.rows):
                sizes = ends_of(block, row)
                ends = (sizes[dim] if isinstance(dim, str) else dim for dim in self.spec.dims)
                yield block.tensors["x"][(row, *map(slice, ends), ...)]


def block_of(tensors, sizes, lengths=None, *, answered=()):
    """An admitted request: tensors by name, [rows, ...]; answered: the axes that outputs carry."""
    lengths = lengths or {}
    cut = {axis: max(ends) for axis, ends in lengths.items() if axis not in answered}
    rows = len(next(iter(tensors.values())))
    return Block(rows, sizes, lengths, tensors, {**sizes, **cut})


def ends_of(block, row):
    """Return the end of this row's data, by axis."""
    return {
        axis: block.lengths[axis][row] if axis in block.lengths else size
        for axis, size in block.sizes.items()
    }


def poisoned(shape, dtype):
    """Yield the same array twice, in memory of all ones and of all zeros, with guards around it.

    At least one of the two differs from any expected value where nothing is written. With each
    array comes a function that fails if a byte beside it was touched.
    """
    nbytes = int(np.prod(shape)) * dtype.itemsize
    for byte in (1 if dtype == np.bool_ else 255, 0):
        memory = np.full(nbytes + 2 * GUARD, byte, np.uint8)

        def untouched(memory=memory, byte=byte):
            assert (memory[:GUARD] == byte).all()
            assert (memory[-GUARD:] == byte).all()

        yield memory[GUARD:-GUARD].view(dtype).reshape(shape), untouched


def written(write, shape, dtype):
    """Return the array that `write` fills; fails if it skips an element or touches others."""
    results = []
    for array, untouched in poisoned(shape, dtype):
        write(array)
        untouched()
        results.append(array)
    np.testing.assert_array_equal(*results)
    return results[0]


def _values(rng, shape, dtype, memory):
    """Draw any bits (0 and 1 for bools), in contiguous, transposed or repeated memory."""
    match memory:
        case "turned":
            return _values(rng, shape[::-1], dtype, "contiguous").T
        case "repeated":
            return np.broadcast_to(_values(rng, (), dtype, "contiguous"), shape)
    bits = rng.integers(0, 256, (*shape, dtype.itemsize), np.uint8)
    return (bits & 1 if dtype == np.bool_ else bits).view(dtype)[..., 0]


def _request_batch(dims, dtype, drawn, alike, own, answered, gear, seed):
    spec, rng = TensorSpec("x", dtype, tuple(dims)), np.random.default_rng(seed)
    blocks = []
    for axis_sizes, row_ends, memory in drawn:
        sizes = dict(zip(AXES, drawn[0][0] if alike else axis_sizes, strict=True))
        ends = {
            axis: [1 + end[place] % sizes[axis] for end in row_ends]
            for place, axis in enumerate(AXES)
            if axis in own
        }
        rows = len(row_ends)
        values = _values(rng, (rows, *spec.shape(sizes)), dtype.numpy, memory)
        blocks.append(block_of({"x": values}, sizes, ends))
    pad = _values(rng, (), dtype.numpy, "contiguous")[()]
    rows, extents = gear
    return RequestBatch(spec, blocks, pad, answered, rows, tuple(extents.items()))


_AXIS = st.sampled_from(AXES)
_SIZES = st.tuples(*[st.integers(1, 6)] * len(AXES))
_BLOCKS = st.lists(
    st.tuples(
        _SIZES,
        st.lists(_SIZES, min_size=1, max_size=3),
        st.sampled_from(["contiguous", "turned", "repeated"]),
    ),
    min_size=1,
    max_size=5,
)


def request_batches(first=None, lengths=True):
    """first: the axis of the first dimension and of no other, as required for a packed axis."""
    axes = st.sampled_from([axis for axis in AXES if axis != first])
    dims = st.lists(st.integers(1, 3) | axes, max_size=3)
    return st.builds(
        _request_batch,
        dims.map(lambda drawn: [first, *drawn]) if first else dims,
        st.sampled_from(FIXED_SIZE),
        _BLOCKS,
        st.booleans(),
        st.frozensets(_AXIS) if lengths else st.just(frozenset()),
        st.frozensets(_AXIS),
        st.tuples(st.integers(0, 18), st.dictionaries(_AXIS, st.integers(1, 20))),
        st.integers(0, 99),
    )
