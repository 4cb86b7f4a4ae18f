"""One batch on one engine; the engine is a stand-in, the memory is real."""

import numpy as np
import pytest

from ge_runtime.batching.admission import Block
from ge_runtime.batching.feeds import Joined
from ge_runtime.batching.gears import Gear
from ge_runtime.engines.contract import Contract
from ge_runtime.errors import EngineFault
from ge_runtime.memory.arena import Arena
from ge_runtime.memory.slots import AnswerSlots
from ge_runtime.scheduling.lane import BatchRules, Lane
from ge_runtime.specs import DType, TensorSpec

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


class Failing(Engine):
    @staticmethod
    def run(inputs, outputs):
        raise EngineFault("no")


@pytest.fixture
def slots():
    return AnswerSlots([np.zeros(SLOT_BYTES, np.uint8) for _ in range(2)])


@pytest.fixture
def lane_of(slots):
    """A function: engine -> a lane with it; all lanes share the slots."""

    def lane_of(engine):
        rules = BatchRules(batched=True, packing=None, terms=())
        contract = Contract((Joined(X, np.uint8(0)),), (Y,))
        inputs = Arena(np.zeros(SLOT_BYTES, np.uint8), "inputs")
        return Lane(engine, contract, rules, inputs=inputs, answers=slots)

    return lane_of


def execute(lane, *values):
    blocks = [
        Block(1, {}, {}, {"x": np.full((1, 2), value, np.uint8)}, needs={}) for value in values
    ]
    answers, _ = lane.execute(blocks, Gear(len(blocks), {}))
    return [answer["y"] for answer in answers]


def test_batches_of_one_window_share_a_slot_and_those_of_the_next_do_not(lane_of, slots):
    lane = lane_of(Engine())
    held = [execute(lane, value) for value in range(3)]
    assert slots.free == 1
    lane.end_window()
    held.append(execute(lane, 3))
    assert slots.free == 0
    assert [array.tolist() for (array,) in held] == [[[value] * 2] for value in range(4)]


def test_a_window_takes_another_slot_when_one_is_full(lane_of, slots):
    lane = lane_of(Engine())
    held = [execute(lane, value) for value in range(SLOT_BYTES // 64 + 1)]
    assert slots.free == 0
    assert [array.tolist() for (array,) in held] == [[[value] * 2] for value in range(len(held))]


def test_a_batch_that_fails_leaves_its_room_to_others(lane_of, slots):
    lane = lane_of(Failing())
    for _ in range(SLOT_BYTES):
        with pytest.raises(EngineFault):
            execute(lane, 1)
    assert slots.free == 1
    assert slots.spilled == 0


def test_poison_shows_in_the_next_batch_where_nothing_is_written(lane_of):
    lane = lane_of(Idle())
    execute(lane, 1)
    lane.poison(7)
    assert execute(lane, 1)[0].tolist() == [[7, 7]]
