import pytest
from runtime.support.configs import encoder_config, model_config, pixels_config, tensor
from runtime.support.graphs import ENCODER, NONZERO, PIXELS, TABLE, write

from ge_runtime.batching.gears import Gear
from ge_runtime.config import RuntimeConfig
from ge_runtime.engines.contract import Contract
from ge_runtime.engines.gearing import Footprint, Gearing, measured
from ge_runtime.engines.onnx import OnnxEngine
from ge_runtime.errors import EngineFault, OutOfMemory
from ge_runtime.memory.lifetimes import Intermediates, Lifetime
from ge_runtime.memory.plan import Need, Plan
from ge_runtime.planning.histogram import Histogram


def gearing(tmp_path, parameters=None, **more):
    config = RuntimeConfig.parse(encoder_config(parameters, **more), cores=1)
    return Gearing.of(config, tmp_path)


def test_without_gears_memory_is_planned_for_the_limits(tmp_path):
    found = gearing(tmp_path)
    assert found.tables == {}
    assert found.planned == (Gear(8, {"tokens": 32}),)
    assert found.report == ()


def test_derived_gears_are_powers_of_two_without_a_histogram(tmp_path):
    found = gearing(tmp_path, {"gears.tokens": "auto 3", "histogram": "sizes.json"})
    assert found.tables == {("tokens",): ((8,), (16,), (32,))}
    assert found.report == (
        'gears.tokens = "8, 16, 32": powers of two, because there is no histogram',
    )


def test_derived_gears_have_sizes_that_executions_have(tmp_path):
    histogram = Histogram(["batch", "tokens"])
    for tokens in (3, 5, 17):
        histogram.add((1, tokens), 500)
    histogram.save(tmp_path / "sizes.json")
    sizes = {"gears.tokens": "auto 4", "align.tokens": "8", "min.tokens": "10"}
    found = gearing(tmp_path, {**sizes, "histogram": "sizes.json"})
    assert found.tables == {("tokens",): ((16,), (24,), (32,))}


@pytest.mark.parametrize("text", ["no histogram", "[]"])
def test_histogram_that_cannot_be_read_is_reported_and_not_used(tmp_path, text):
    (tmp_path / "sizes.json").write_text(text)
    found = gearing(tmp_path, {"gears.tokens": "auto 3", "histogram": "sizes.json"})
    assert found.tables == {("tokens",): ((8,), (16,), (32,))}
    first, second = found.report
    assert first.startswith(f"the histogram is not used: {tmp_path / 'sizes.json'}: not a")
    assert second.endswith("because there is no histogram")


def test_histogram_of_other_axes_is_reported_and_not_used(tmp_path):
    Histogram(["batch", "height"]).save(tmp_path / "sizes.json")
    found = gearing(tmp_path, {"gears.tokens": "32", "histogram": "sizes.json"})
    assert found.histogram is None
    assert found.report == (
        "the histogram is not used: found axes batch, height, expected batch, tokens",
    )


def test_fallback_is_planned_for_requests_that_no_gear_holds(tmp_path):
    parameters = {"gears.tokens": "8, 16", "oversize": "fallback"}
    largest = Gear(8, {"tokens": 32})
    assert gearing(tmp_path, parameters).planned == (
        Gear(8, {"tokens": 8}),
        Gear(8, {"tokens": 16}),
        largest,
    )
    parameters = {"gears.tokens": "8, 32", "oversize": "fallback"}
    assert gearing(tmp_path, parameters).planned == (Gear(8, {"tokens": 8}), largest)


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


MIB = 2**20


class ArenaOf:
    """Executions take `factor` of what they are guessed to take."""

    def __init__(self, factor):
        self._factor = factor

    def measure(self, execute, about_bytes):
        execute()
        return None if self._factor is None else int(about_bytes * self._factor)


def plan_of(*gears, per_row):
    """Each row of the i-th gear takes per_row[i] bytes."""
    needs = [
        Need({"batch": gear.rows}, {}, {}, Intermediates((Lifetime("x", gear.rows * row, 0, 1),)))
        for gear, row in zip(gears, per_row, strict=True)
    ]
    return Plan.of(needs, weights_bytes=0, answer_slots=1)


def test_few_rows_stand_for_all():
    gears = [Gear(64, {"tokens": 512}), Gear(64, {"tokens": 32})]
    plan = plan_of(*gears, per_row=(8 * MIB, MIB))
    executed = []
    found = measured(ArenaOf(1.5), executed.append, gears, plan)
    assert executed == [Gear(2, {"tokens": 512}), Gear(16, {"tokens": 32})]
    assert [gear.taken_bytes for gear in found.gears] == [64 * 12 * MIB, 64 * 1.5 * MIB]
    assert found.workspace_bytes == 64 * 12 * MIB
    assert plan.workspace_bytes == 64 * 8 * MIB


@pytest.mark.parametrize("fault", [EngineFault("8 rows are fixed"), OutOfMemory("too little")])
def test_a_graph_that_takes_all_rows_or_none_is_measured_with_all(fault):
    gear = Gear(8, {})

    def execute(gear):
        if gear.rows != 8:
            raise fault

    found = measured(ArenaOf(2), execute, [gear], plan_of(gear, per_row=[4 * MIB]))
    assert found.workspace_bytes == 64 * MIB


def test_where_all_rows_would_take_long_the_plan_stays_that_of_the_graph():
    gear = Gear(64, {})

    def execute(gear):
        raise EngineFault("64 rows are fixed")

    plan = plan_of(gear, per_row=[8 * MIB])
    assert measured(ArenaOf(2), execute, [gear], plan) == plan


def test_without_a_measurement_the_plan_is_that_of_the_graph():
    gear = Gear(4, {})
    plan = plan_of(gear, per_row=[MIB])
    assert measured(ArenaOf(None), lambda gear: None, [gear], plan) == plan


def test_of_many_gears_those_that_need_most_are_measured():
    gears = [Gear(1, {"n": size}) for size in range(1, 41)]
    plan = plan_of(*gears, per_row=[MIB * gear.extents["n"] for gear in gears])
    executed = []
    found = measured(ArenaOf(1), executed.append, gears, plan)
    assert [gear.extents["n"] for gear in executed] == list(range(25, 41))
    assert sum(gear.measured_bytes is not None for gear in found.gears) == 16
