"""The order of an ensemble's steps, for any graph without cycles."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_server.config.schema import EnsembleStep
from reference_server.scheduling.ensemble_plan import EnsembleGraph


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
    ("finished", "ready"),
    [([], [0]), ([0], [1, 2]), ([0, 1], [2]), ([0, 1, 2], [3]), ([0, 1, 2, 3], [])],
)
def test_a_step_is_ready_when_its_sources_have_finished(diamond, finished, ready):
    assert diamond.ready({*range(4)}, started={*finished}, finished={*finished}) == ready


def test_a_started_step_is_not_ready_again(diamond):
    assert diamond.ready({*range(4)}, started={0, 1}, finished={0}) == [2]


@pytest.mark.parametrize(
    ("requested", "needed"),
    [("", {0, 1, 2, 3}), ("O", {0, 1, 2, 3}), ("P", {0, 2}), ("PO", {0, 1, 2, 3})],
)
def test_needed_steps_of_requested_outputs(diamond, requested, needed):
    assert diamond.needed_for(requested) == needed


def test_output_that_is_an_input_needs_no_step():
    assert EnsembleGraph([step("I", "O")], "IO").needed_for("I") == set()


def test_step_without_used_output_is_not_needed():
    assert EnsembleGraph([step("I", "O"), step("I", "z")], "O").needed_for("") == {0}


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


@pytest.mark.brute_force
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


@pytest.mark.brute_force
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
