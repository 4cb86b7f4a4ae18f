"""The order of an ensemble's steps, its stages, and the batch dimension of its tensors."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from server.support.requests import signature

from reference_server.config.schema import EnsembleStep
from reference_server.core.tensor import DataType
from reference_server.scheduling.ensemble_plan import BatchDimAdapter, EnsembleGraph


def step(reads, writes):
    """Return a step; each letter is the name of a tensor."""
    return EnsembleStep(
        "m",
        -1,
        {f"in {tensor}": tensor for tensor in reads},
        {f"out {tensor}": tensor for tensor in writes},
    )


#: I -> a -> (b, c) -> d -> O, and c also produces P.
DIAMOND = [step("I", "a"), step("a", "b"), step("a", "cP"), step("bc", "O")]


@pytest.fixture
def diamond():
    return EnsembleGraph(DIAMOND, "OP")


@pytest.mark.parametrize(
    ("tensor", "shared"),
    [("I", False), ("a", True), ("b", False), ("P", False), ("O", False)],
)
def test_tensors_with_several_readers_are_shared(diamond, tensor, shared):
    assert diamond.is_shared(tensor) is shared


def test_a_tensor_for_a_step_and_the_client_is_shared():
    assert EnsembleGraph([step("I", "P"), step("P", "O")], "OP").is_shared("P")


# ------------------------------------------------------------------------------ any ensemble

LETTERS = "abcdefgh"


@st.composite
def ensembles(draw):
    """Draw steps in any order; each writes one tensor and reads the input or earlier tensors."""
    count = draw(st.integers(1, len(LETTERS)))
    reads = [
        draw(st.sets(st.sampled_from("I" + LETTERS[:index]), min_size=1)) for index in range(count)
    ]
    steps = [step(sorted(reads[index]), LETTERS[index]) for index in range(count)]
    outputs = draw(st.sets(st.sampled_from(LETTERS[:count]), min_size=1))
    return draw(st.permutations(steps)), outputs


def sources(steps, index):
    """Return the steps that write the inputs of step `index`."""
    reads = set(steps[index].inputs.values())
    return {
        other for other, step in enumerate(steps) if not reads.isdisjoint(step.outputs.values())
    }


@settings(max_examples=25)
@given(ensembles(), st.data())
def test_every_needed_step_runs_once_and_after_its_sources(ensemble, data):
    steps, outputs = ensemble
    graph = EnsembleGraph(steps, outputs)
    needed = graph.needed_for(())
    started, finished = [], []
    while len(finished) < len(needed):
        ready = graph.ready(needed, {*started}, {*finished})
        for index in ready:
            assert sources(steps, index) <= set(finished)
        started += ready
        running = [index for index in started if index not in finished]
        finished.append(data.draw(st.sampled_from(running)))
    assert sorted(started) == sorted(needed)


@settings(max_examples=25)
@given(ensembles(), st.data())
def test_needed_steps_are_sufficient_and_minimal(ensemble, data):
    steps, outputs = ensemble
    requested = data.draw(st.sets(st.sampled_from(sorted(outputs)), min_size=1))
    needed = EnsembleGraph(steps, outputs).needed_for(requested)

    def writes_requested(index):
        return not requested.isdisjoint(steps[index].outputs.values())

    for index in range(len(steps)):
        feeds_needed = any(index in sources(steps, other) for other in needed)
        assert (index in needed) is (writes_requested(index) or feeds_needed)


# ------------------------------------------------------------------------------------- stages


def test_without_decoupled_steps_there_is_one_stage():
    graph = EnsembleGraph([step("I", "a"), step("a", "O")], "O")
    assert (graph.stages(()), graph.last_stage) == (({0, 1},), 0)


def test_a_decoupled_step_is_the_last_of_its_stage():
    graph = EnsembleGraph([step("I", "a"), step("a", "b"), step("b", "O")], "O", [1])
    assert graph.stages(()) == ({0, 1}, {2})


def test_output_of_a_decoupled_step_can_be_the_ensembles():
    graph = EnsembleGraph([step("I", "O")], "O", [0])
    assert graph.stages(()) == ({0}, frozenset())


def test_two_chained_decoupled_steps_make_three_stages():
    graph = EnsembleGraph([step("b", "O"), step("a", "b"), step("I", "a")], "O", [0, 2])
    assert graph.stages(()) == ({2}, {0, 1}, frozenset())


def test_stages_contain_only_needed_steps():
    graph = EnsembleGraph([step("I", "ab"), step("a", "O"), step("b", "P")], "OP", [0])
    assert graph.stages("P") == ({0}, {2})


@pytest.mark.parametrize(
    ("steps", "outputs", "decoupled", "mixes"),
    [
        ([step("I", "ab"), step("ab", "O")], "O", [0], False),
        ([step("I", "ab")], "ab", [0], False),
        ([step("I", "a"), step("a", "O")], "aO", [0], False),
        ([step("I", "a"), step("a", "O")], "O", [0, 1], False),
        ([step("I", "a"), step("aI", "O")], "O", [0], True),
        ([step("I", "a"), step("I", "b"), step("ab", "O")], "O", [0], True),
        ([step("I", "a"), step("I", "b"), step("ab", "O")], "O", [0, 1], True),
        ([step("I", "a"), step("I", "O")], "aO", [0], True),
        ([step("I", "a"), step("a", "O")], "aO", [0, 1], True),
        ([step("I", "a")], "aI", [0], True),
    ],
    ids=[
        "two outputs of one answer join",
        "two outputs of one answer",
        "an answer and what is made of it",
        "answers of answers",
        "an answer and the request",
        "an answer and what is made of the request",
        "answers of two models join",
        "an answer beside what is made of the request",
        "an answer beside its answers",
        "an answer beside the request",
    ],
)
def test_mixing_responses_is_detected(steps, outputs, decoupled, mixes):
    assert EnsembleGraph(steps, outputs, decoupled).mixes_answers is mixes


# ---------------------------------------------------------------------------- batch dimension


def a_model(dims, max_batch_size):
    tensor = (DataType.FP32, dims)
    return signature({"X": tensor}, {"Y": tensor}, max_batch_size=max_batch_size)


def chain(*models, dims=(1,), max_batch_size=0):
    """Return the adapter of an ensemble that is a chain of these models, from I to O."""
    names = ["I", *(f"t{number}" for number in range(1, len(models))), "O"]
    steps = [
        EnsembleStep("m", -1, {"X": names[number]}, {"Y": names[number + 1]})
        for number in range(len(models))
    ]
    tensor = (DataType.FP32, dims)
    outside = signature({"I": tensor}, {"O": tensor}, max_batch_size=max_batch_size)
    return BatchDimAdapter(outside, steps, models)


@pytest.mark.parametrize(
    ("dims", "shape", "given"),
    [
        ((1,), (1, 1), (1,)),
        ((1,), (2, 1), (2, 1)),
        ((-1,), (1, 3), (3,)),
        ((-1,), (2, 3), (2, 3)),
        ((-1, 2), (3, 2), (3, 2)),
        ((-1, 2), (1, 2), (1, 2)),
    ],
)
def test_batch_dimension_is_removed_for_a_model_without_batching(dims, shape, given):
    fitting = chain(a_model(dims, 0), dims=(1,), max_batch_size=4)
    assert fitting.for_step(0, "X", shape) == given


@pytest.mark.parametrize(
    ("dims", "shape", "given"),
    [((1,), (1,), (1, 1)), ((1,), (3, 1), (3, 1)), ((-1,), (7,), (1, 7)), ((2,), (3,), (3,))],
)
def test_batch_dimension_is_added_for_a_model_with_batching(dims, shape, given):
    assert chain(a_model(dims, 8)).for_step(0, "X", shape) == given


def test_client_gets_its_batch_dimension_back():
    fitting = chain(a_model((1,), 0), dims=(1,), max_batch_size=4)
    assert fitting.for_client("O", (1,)) == (1, 1)


def test_client_gets_no_batch_dimension_it_has_not_sent():
    assert chain(a_model((1,), 8)).for_client("O", (1, 1)) == (1,)


def test_batch_dimension_between_two_steps():
    fitting = chain(a_model((1,), 8), a_model((1,), 0), dims=(1,), max_batch_size=8)
    assert fitting.for_step(0, "X", (1, 1)) == (1, 1)
    assert fitting.for_step(1, "X", (1, 1)) == (1,)
    assert fitting.for_client("O", (1,)) == (1, 1)


SHAPES = st.lists(st.integers(0, 4), max_size=4).map(tuple)
DIMS = st.lists(st.sampled_from([-1, 1, 2, 3]), min_size=1, max_size=3).map(tuple)


@settings(max_examples=20)
@given(SHAPES, DIMS, st.booleans())
def test_shape_is_unchanged_if_both_or_neither_batch(shape, dims, batched):
    size = 4 if batched else 0
    fitting = chain(a_model(dims, size), dims=dims, max_batch_size=size)
    assert fitting.for_step(0, "X", shape) is shape
    assert fitting.for_client("O", shape) is shape


@settings(max_examples=20)
@given(SHAPES, DIMS, st.booleans())
def test_adapted_shape_has_the_same_number_of_elements(shape, dims, batched):
    fitting = chain(a_model(dims, 4 * batched), dims=dims, max_batch_size=4 * (not batched))
    for fitted in (fitting.for_step(0, "X", shape), fitting.for_client("O", shape)):
        assert [size for size in fitted if size != 1] == [size for size in shape if size != 1]
