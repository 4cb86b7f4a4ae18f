"""The stages of ensembles with decoupled steps."""

import pytest

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
