"""One batch on one engine; the engine is a test double, the memory is real."""

import gc
import time
import weakref
from contextlib import contextmanager, nullcontext

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ge_runtime.batching.admission import Block
from ge_runtime.batching.feeds import Joined
from ge_runtime.batching.gears import Gear
from ge_runtime.config import PaddingRule
from ge_runtime.engines.contract import Contract
from ge_runtime.errors import EngineFault
from ge_runtime.memory.arena import AnswerSlots, Arena, aligned_bytes
from ge_runtime.scheduling.executor import BatchRules, Executor
from ge_runtime.specs import UNKNOWN, DType, TensorSpec

X, Y = TensorSpec("x", DType.UINT8, (2,)), TensorSpec("y", DType.UINT8, (2,))
SLOT_BYTES = 512


class Engine:
    """Copies x to y."""

    @staticmethod
    def run(inputs, outputs):
        np.copyto(outputs["y"], inputs["x"])
        return outputs


class Idle(Engine):
    """Writes nothing."""

    run = staticmethod(lambda inputs, outputs: outputs)


class Passing(Engine):
    """Returns its input as y."""

    run = staticmethod(lambda inputs, outputs: {"y": inputs["x"]})


class Picky(Engine):
    """Fails on a 9."""

    @staticmethod
    def run(inputs, outputs):
        if 9 in inputs["x"]:
            raise EngineFault("no")
        return Engine.run(inputs, outputs)


@pytest.fixture
def slots():
    return AnswerSlots([np.zeros(SLOT_BYTES, np.uint8) for _ in range(2)])


@pytest.fixture
def executor_of(slots):
    """Return a function: engine -> an executor with it; all executors share the slots."""

    def executor_of(engine, outputs=(Y,), *, here=True, reproducible=False):
        rules = BatchRules(True, None, (), {}, here, reproducible)
        contract = Contract((Joined(X, np.uint8(0)),), outputs)
        inputs = Arena(np.zeros(SLOT_BYTES, np.uint8), "inputs")
        return Executor(engine, contract, rules, inputs=inputs, answers=slots)

    return executor_of


def block_of(value):
    return Block(1, {}, {}, {"x": np.full((1, 2), value, np.uint8)}, needs={})


def execute(executor, *values):
    answers, _ = executor.execute([block_of(value) for value in values], Gear(len(values), {}))
    return [answer["y"] for answer in answers]


def test_executions_of_one_request_batch_share_a_slot(executor_of, slots):
    executor = executor_of(Engine())
    held = [execute(executor, value) for value in range(3)]
    assert slots.free == 1
    executor.end_batch()
    held.append(execute(executor, 3))
    assert slots.free == 0
    assert [array.tolist() for (array,) in held] == [[[value] * 2] for value in range(4)]


def test_a_failed_batch_releases_its_memory(executor_of, slots):
    executor = executor_of(Picky())
    held = execute(executor, 1)
    for _ in range(SLOT_BYTES):
        with pytest.raises(EngineFault):
            execute(executor, 9)
    held += execute(executor, 2)
    assert [array.tolist() for array in held] == [[[1, 1]], [[2, 2]]]
    assert (slots.free, slots.spilled) == (1, 0)


def test_an_execution_is_counted(executor_of):
    before = time.perf_counter()
    _, counts = executor_of(Engine()).execute([block_of(1), block_of(2)], Gear(4, {}))
    assert 0 <= counts.launch_seconds <= time.perf_counter() - before
    assert (counts.launches, counts.launch_rows) == (1, {2: 1})
    assert (counts.useful_elements, counts.executed_elements) == (2, 4)
    assert counts.copied_bytes == 4 * 2  # the inputs: answers are views


def test_memory_chosen_by_the_engine_is_copied(executor_of):
    executor = executor_of(Passing(), outputs=(TensorSpec("y", DType.UINT8, (UNKNOWN,)),))
    held = execute(executor, 1) + execute(executor, 2)
    assert [array.tolist() for array in held] == [[[1, 1]], [[2, 2]]]


def test_poison_is_visible_where_nothing_is_written(executor_of):
    executor = executor_of(Idle())
    execute(executor, 1)
    executor.poison(7)
    assert execute(executor, 1)[0].tolist() == [[7, 7]]


def ragged(ends, beyond):
    """Return a request with these row ends; its tensor is longer by `beyond`."""
    size = max(ends) + beyond
    rows = np.arange(1, size + 1, dtype=np.uint8) * np.ones((len(ends), 1), np.uint8)
    return Block(len(ends), {"n": size}, {"n": ends}, {"x": rows}, needs={"n": size})


_REQUEST = st.builds(
    ragged, st.lists(st.integers(1, 40), min_size=1, max_size=3), st.integers(0, 60)
)


@pytest.mark.brute_force
@pytest.mark.parametrize("packing", [None, "n"])
@given(request_batch=st.lists(st.lists(_REQUEST, min_size=1, max_size=3), max_size=8))
def test_every_execution_gets_a_slot_that_holds_its_answers(request_batch, packing):
    x, y = (TensorSpec(name, DType.UINT8, ("n",)) for name in "xy")
    executor = Executor(
        Engine(),
        Contract((Joined(x, np.uint8(0)),), (y,)),
        BatchRules(True, packing, (("n",),), {"n": PaddingRule.MASKED}, True),
        inputs=Arena(np.zeros(2048, np.uint8), "inputs"),
        answers=AnswerSlots([np.zeros(2560, np.uint8) for _ in range(3)]),
    )
    held = []
    for batch in request_batch:
        ends = [end for block in batch for end in block.lengths["n"]]
        largest = Gear(len(ends), {"n": max(block.sizes["n"] for block in batch)})
        answers, counts = executor.execute(batch, largest)
        assert counts.useful_elements == sum(ends)
        assert counts.executed_elements == (
            sum(ends) if packing else len(ends) * largest.extents["n"]
        )
        held += zip(batch, answers, strict=True)
    for block, answer in held:
        inside = np.arange(block.sizes["n"]) < np.array(block.lengths["n"])[:, None]
        np.testing.assert_array_equal(answer["y"], block.tensors["x"] * inside)


@pytest.mark.parametrize(
    ("rule", "sizes", "reasons"),
    [
        (PaddingRule.MASKED, [3], {}),
        (PaddingRule.MASKED, [3, 3], {"equal": 1}),
        (PaddingRule.MASKED, [3, 2], {"masked": 1}),
        (PaddingRule.NEUTRAL, [3, 2], {"neutral": 1}),
        (PaddingRule.NEUTRAL, [3, 3], {"equal": 1}),
        (PaddingRule.EQUAL, [3, 3], {"equal": 1}),
    ],
)
def test_the_reason_for_sharing_is_counted(rule, sizes, reasons):
    x, y = (TensorSpec(name, DType.UINT8, ("n",)) for name in "xy")
    executor = Executor(
        Engine(),
        Contract((Joined(x, np.uint8(0)),), (y,)),
        BatchRules(True, None, (("n",),), {"n": rule}, True),
        inputs=Arena(np.zeros(2048, np.uint8), "inputs"),
        answers=AnswerSlots([np.zeros(2560, np.uint8)]),
    )
    blocks = [ragged([size], size) for size in sizes]
    _, counts = executor.execute(blocks, Gear(len(sizes), {"n": max(sizes)}))
    assert counts.shared_launches == reasons


class Queued(Engine):
    """Waits for its device; records the limits of each execution."""

    def __init__(self):
        self.waits, self.filled = [], []

    def reserve(self, nbytes): ...

    def expect_rows(self, filled):
        self.filled.append(filled)

    @contextmanager
    def waiting(self, within, gone):
        self.waits.append((within, gone))
        yield


def test_an_engine_that_waits_gets_the_limits_of_each_execution(executor_of):
    engine = Queued()
    executor = executor_of(engine, here=False)
    executor.execute([block_of(1)], Gear(2, {}), ("within", "gone"))
    executor.execute([block_of(1)], Gear(1, {}))  # without limits
    assert engine.waits == [("within", "gone")]
    assert engine.filled == [1, 1]


# -- requests that are not copied --------------------------------------------------------------


class Reading(Engine):
    """Keeps its last input."""

    def run(self, inputs, outputs):
        self.read = inputs["x"]
        return Engine.run(inputs, outputs)


def request_of(tensor):
    return Block(len(tensor), {}, {}, {"x": tensor}, needs={})


def aligned(rows=1):
    tensor = aligned_bytes(2 * rows).reshape(rows, 2)
    tensor[...] = 7
    return tensor


def read_only():
    tensor = aligned()
    tensor.flags.writeable = False
    return tensor


@pytest.mark.parametrize("rows", [1, 3])
def test_a_lone_request_without_padding_is_not_copied(executor_of, rows):
    engine, tensor = Reading(), aligned(rows)
    (answer,), counts = executor_of(engine).execute([request_of(tensor)], Gear(rows, {}))
    assert np.shares_memory(engine.read, tensor)
    assert counts.copied_bytes == 0
    assert answer["y"].tolist() == tensor.tolist()


@pytest.mark.parametrize("value", [7, 9], ids=["answered", "failed"])
def test_a_request_is_not_kept_after_its_execution(executor_of, value):
    executor, tensor = executor_of(Picky()), aligned()
    tensor[...] = value
    with nullcontext() if value == 7 else pytest.raises(EngineFault):
        executor.execute([request_of(tensor)], Gear(1, {}))
    memory = weakref.ref(tensor)
    del tensor
    gc.collect()
    assert memory() is None


@pytest.mark.parametrize(
    "tensor",
    [
        aligned_bytes(3)[1:].reshape(1, 2),
        aligned(2).T[:1],
        read_only(),
        np.broadcast_to(np.uint8(7), (1, 2)),
    ],
    ids=["unaligned", "not contiguous", "read-only", "one element"],
)
def test_a_lone_request_that_the_engine_cannot_read_directly_is_copied(executor_of, tensor):
    engine = Reading()
    (answer,), counts = executor_of(engine).execute([request_of(tensor)], Gear(1, {}))
    assert not np.shares_memory(engine.read, tensor)
    assert counts.copied_bytes == 2
    assert answer["y"].tolist() == tensor.tolist()


@given(request=_REQUEST, padding=st.tuples(st.integers(0, 2), st.integers(0, 2)))
def test_requests_that_are_not_copied_get_the_same_answers_and_counts(request, padding):
    x, y = (TensorSpec(name, DType.UINT8, ("n",)) for name in "xy")
    tensor = aligned_bytes(request.tensors["x"].size).reshape(request.tensors["x"].shape)
    tensor[...] = request.tensors["x"]
    request = request._replace(tensors={"x": tensor})
    gear = Gear(request.rows + padding[0], {"n": request.sizes["n"] + padding[1]})
    results = []
    for here in (True, False):
        executor = Executor(
            Engine(),
            Contract((Joined(x, np.uint8(0)),), (y,)),
            BatchRules(True, None, (("n",),), {"n": PaddingRule.MASKED}, here),
            inputs=Arena(np.zeros(2048, np.uint8), "inputs"),
            answers=AnswerSlots([np.zeros(2560, np.uint8)]),
        )
        (answer,), counts = executor.execute([request], gear)
        counts.launch_seconds = counts.measured_seconds = counts.copied_bytes = 0
        results.append((answer["y"].tolist(), counts))
    assert results[0] == results[1]


@pytest.mark.parametrize("rules", [{"here": False}, {"reproducible": True}])
def test_requests_for_devices_and_reproducible_answers_are_copied(executor_of, rules):
    engine, tensor = Reading(), aligned()
    executor_of(engine, **rules).execute([request_of(tensor)], Gear(1, {}))
    assert not np.shares_memory(engine.read, tensor)
