import numpy as np
import pytest
from runtime.support.configs import encoder_config, model_config, pixels_config, tensor
from runtime.support.graphs import ENCODER, NONZERO, PIXELS, TABLE, write

from ge_runtime.batching.feeds import Joined, Offsets
from ge_runtime.batching.gears import Gear
from ge_runtime.config import RuntimeConfig
from ge_runtime.engines.contract import Contract
from ge_runtime.engines.gearing import Footprint
from ge_runtime.engines.onnx import OnnxEngine
from ge_runtime.specs import DType, TensorSpec


@pytest.fixture
def opened(tmp_path):
    """A function: the engine of a graph, and the footprint of its contract."""

    def of(graph, config):
        engine = OnnxEngine.open(write(graph, "onnxruntime", tmp_path), 1)
        config = RuntimeConfig.parse(config, cores=1)
        contract = Contract.between(config, engine.signature)
        return engine, Footprint(contract, config.batched, config.packing)

    return of


def test_gear_takes_what_its_batch_takes(opened):
    engine, footprint = opened(ENCODER, encoder_config())
    gear = Gear(8, {"tokens": 32})
    assert footprint.shapes(gear) == {"input_ids": (8, 32), "attention_mask": (8, 32)}
    plan = footprint.plan(engine, [gear])
    (planned,) = plan.gears
    assert planned.sizes == {"batch": 8, "tokens": 32}
    assert plan.inputs_bytes == 2 * 8 * 32 * 8
    # A batch of requests may be executed row by row, each execution's answers aligned.
    assert plan.answers_bytes == 8 * 4 * 4 + 7 * 64
    # The embeddings before and after the mask, and the mask, 32 numbers a row.
    assert plan.workspace_bytes == 2 * 8 * 32 * 4 * 4 + 8 * 32 * 4
    assert plan.weights_bytes >= TABLE.nbytes
    assert plan.answer_slots == 3


def test_memory_is_planned_for_all_gears(opened):
    engine, footprint = opened(ENCODER, encoder_config())
    gears = [Gear(8, {"tokens": 4}), Gear(1, {"tokens": 32})]
    plan = footprint.plan(engine, gears, answer_slots=1)
    alone = [footprint.plan(engine, [gear], answer_slots=1) for gear in gears]
    assert plan.inputs_bytes == max(each.inputs_bytes for each in alone)
    assert plan.workspace_bytes == max(each.workspace_bytes for each in alone)


def test_answers_that_are_cut_to_their_requests_size_have_room_for_a_copy(opened):
    engine, footprint = opened(PIXELS, pixels_config())
    plan = footprint.plan(engine, [Gear(2, {"height": 16, "width": 16})])
    inverted = 2 * 16 * 16 * 4
    assert plan.answers_bytes == 64 + inverted + (inverted + 2 * 64) + 2 * 64


def test_graph_without_a_batch_dimension_is_asked_for_shapes_without_one(opened):
    config = model_config(
        [tensor("x", "FP32", [-1])],
        [tensor("where", "INT64", [1, -1])],
        {"axes.x": "n", "limit.n": "50"},
        batch=0,
    )
    engine, footprint = opened(NONZERO, config)
    gear = Gear(1, {"n": 50})
    assert footprint.shapes(gear) == {"x": (50,)}
    plan = footprint.plan(engine, [gear])
    assert plan.inputs_bytes == 256
    # The size of `where` is unknown: the engine allocates it.
    assert plan.answers_bytes == 0


def test_packed_axis_holds_all_rows():
    spec = TensorSpec("input_ids", DType.INT64, ("tokens",))
    feeds = (
        Joined(spec, np.int64(0)),
        Offsets(TensorSpec("offsets", DType.INT32, ()), "tokens"),
    )
    footprint = Footprint(Contract(feeds, ()), batched=True, packed="tokens")
    gear = Gear(8, {"tokens": 32})
    assert footprint.shapes(gear) == {"input_ids": (256,), "offsets": (9,)}
