"""The conformance suite passes sound models, and finds every planted fault."""

from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from runtime.support.graphs import TABLE
from runtime.testing.models import (
    BLIND,
    DOUBLED,
    FREE,
    GEARED,
    IMAGES,
    MIXING,
    ON_BOTH_ENGINES,
    ONE_GEAR,
    OPTIONAL,
    SOUND,
    TOKENS,
    UNFORESEEN,
    encoder,
)
from runtime.testing.mutants import ENGINE_MUTANTS, MUTANTS, ON_ANY_ENGINE, Mutant

from ge_runtime.errors import EngineFault, RuntimeFault
from ge_runtime.scheduling.executor import Executor
from ge_runtime.scheduling.request_batch import RequestBatch
from ge_runtime.testing.conformance import check
from ge_runtime.testing.model_under_test import smallest_failing
from ge_runtime.testing.trials import Failure, Mismatch, Report
from ge_runtime.verification.distance import Rounding

pytestmark = pytest.mark.brute_force


@pytest.fixture
def examine(version_dir):
    """Return a function: model, engine, options -> the report."""

    def report_of(model, engine="onnxruntime", graph=None, **options):
        return check(version_dir(graph or model.graph, engine), model.config, **options)

    return report_of


@pytest.mark.parametrize(
    ("model", "engine"),
    [
        *((model, "onnxruntime") for model in SOUND),
        *((model, "torch") for model in ON_BOTH_ENGINES),
    ],
    ids=str,
)
def test_sound_models_pass(examine, model, engine):
    report = examine(model, engine, rounds=2 if engine == "onnxruntime" else 1)
    assert report.passed, str(report)


@pytest.mark.parametrize(
    ("mutant", "model", "engine"),
    [
        pytest.param(mutant, model, engine, id=f"{name}: {model}, {engine}")
        for engine, names in {"onnxruntime": MUTANTS, "torch": ON_ANY_ENGINE}.items()
        for name, mutant in MUTANTS.items()
        for model in (mutant.models if engine == "onnxruntime" else mutant.models[-1:])
        if name in names
    ],
)
def test_planted_faults_are_found(examine, monkeypatch, mutant, model, engine):
    mutant.plant(monkeypatch)
    report = examine(model, engine)
    assert not report.passed, str(report)


@pytest.mark.parametrize(
    ("engine", "model"),
    [(engine, model) for engine, mutant in ENGINE_MUTANTS.items() for model in mutant.models],
    ids=str,
)
def test_outputs_not_written_by_the_engine_are_found(examine, monkeypatch, engine, model):
    ENGINE_MUTANTS[engine].plant(monkeypatch)
    assert not examine(model, engine).passed


@pytest.mark.parametrize("model", [FREE, GEARED, ONE_GEAR], ids=str)
@pytest.mark.parametrize("graph", [BLIND, MIXING], ids=lambda graph: graph.name)
def test_graphs_that_are_not_sound_are_found(examine, graph, model):
    assert not examine(model, graph=graph).passed


def test_leakage_is_distinguished_from_rounding(examine, monkeypatch):
    def leaking(sound, executor, blocks, *others):
        answers, counts = sound(executor, blocks, *others)
        bits = sum(int(block.tensors["input_ids"].flat[0]) for block in blocks[:1])
        answers[-1]["embedding"] = answers[-1]["embedding"] * np.float32(1 + bits * 2e-7)
        return answers, counts

    assert examine(FREE, rounds=2).moved < 1e-6
    Mutant((FREE,), Executor, "execute", leaking).plant(monkeypatch)
    failure = examine(FREE).failure
    assert failure.how == (
        "in random groups, and again with other values in all requests but one of each group"
    )
    assert failure.mismatch.text.endswith("differ: leakage, as equal executions differ by 0")
    assert [len(group) for group in failure.smallest] == [2]


def test_rounding_passes_unless_a_tolerance_is_given(examine, monkeypatch):
    """A graph that multiplies the last bits of its inputs by a million."""

    def ill_conditioned(sound, *args):
        answers, counts = sound(*args)
        for answer in answers:
            answer["sums"] = answer["sums"] + np.float32(3e-5)
        return answers, counts

    Mutant((IMAGES,), Executor, "execute", ill_conditioned).plant(monkeypatch)
    monkeypatch.setattr(Rounding, "allowed", lambda self, output: 1e-4)
    report = examine(IMAGES, rounds=1)
    assert report.passed
    assert 2e-5 < report.moved < 4e-5
    assert not examine(IMAGES, rounds=1, tolerance=1e-7).passed


def test_no_round_starts_after_the_given_seconds(examine):
    assert examine(FREE, rounds=9, seconds=0.0).rounds == 1


def test_a_failure_is_reduced_to_the_fewest_requests(examine, monkeypatch):
    MUTANTS["answers of an execution swapped"].plant(monkeypatch)
    failure = examine(FREE).failure
    assert failure.how == "in random groups"
    assert failure.mismatch.request in failure.failed_group
    (pair,) = failure.smallest
    assert len(pair) == 2
    assert failure.left.request in pair


def test_a_fault_that_needs_earlier_executions_keeps_them(examine, monkeypatch):
    MUTANTS["answers of a request batch swapped"].plant(monkeypatch)
    assert [len(group) for group in examine(FREE).failure.smallest] == [1, 1]


def test_a_fault_that_does_not_occur_again_is_reported_so(examine, monkeypatch):
    planted = iter([True])

    def once(sound, *args):
        return sound(*args)[:: -1 if next(planted, False) else 1]

    Mutant((FREE,), RequestBatch, "results", once).plant(monkeypatch)
    report = examine(FREE)
    assert report.failure.smallest is None
    assert "the same executions, repeated, gave no wrong answer" in str(report)


def test_an_execution_that_fails_only_for_several_requests_is_a_failure(examine, monkeypatch):
    def refuses_several(sound, executor, blocks, *others):
        if len(blocks) > 1:
            raise EngineFault("too many")
        return sound(executor, blocks, *others)

    Mutant((FREE,), Executor, "execute", refuses_several).plant(monkeypatch)
    failure = examine(FREE).failure
    assert failure.mismatch.request is None
    assert "execution(s) failed, and were repeated in parts" in failure.mismatch.text
    assert [len(group) for group in failure.smallest] == [2]


def test_an_exception_of_the_runtime_is_a_failure(examine, monkeypatch):
    def raises(sound, *args):
        raise KeyError("token")

    Mutant((FREE,), RequestBatch, "results", raises).plant(monkeypatch)
    report = examine(FREE)
    assert report.failure.mismatch.text == "found KeyError ''token'' for all, expected answers"


def test_a_graph_that_fails_on_a_single_request_needs_other_ranges(examine):
    with pytest.raises(RuntimeFault, match="of token ids: input 'input_ids': found 16 "):
        examine(FREE, ranges={"input_ids": (len(TABLE), len(TABLE) + 5)})


def test_a_run_without_shared_executions_is_reported(examine):
    report = examine(UNFORESEEN, rounds=2)
    assert report.passed
    assert (
        "no two requests shared an execution, so their independence is not shown" in report.lines()
    )


def test_random_sizes_are_not_recorded_for_gears(examine, version_dir):
    model = encoder("encoder", {"histogram": "recorded.json"})
    assert examine(model, rounds=1).passed
    assert not (version_dir(model.graph) / "recorded.json").exists()


def test_padding_is_the_highest_value_of_the_range(examine):
    assert examine(FREE, rounds=1, ranges={"input_ids": (0, 16)}).pads == {"input_ids": "15"}
    assert examine(IMAGES, rounds=1, ranges={"image": (0, 0.5)}).pads == {"image": "0.5"}
    padded = encoder("encoder", {"pad.input_ids": "9"})
    assert examine(padded, rounds=1).pads == {"input_ids": "0"}


def test_nan_padding_needs_a_graph_that_selects(examine):
    report = examine(IMAGES, padding="nan")  # this one multiplies by its mask
    assert report.pads == {"image": "nan"}
    assert "found nan" in str(report.failure.mismatch)


def test_kept_padding_hides_a_graph_that_ignores_its_mask(examine):
    kept = examine(ONE_GEAR, graph=BLIND, padding="keep")
    assert kept.passed
    assert not kept.pads
    assert not examine(ONE_GEAR, graph=BLIND).passed


def test_only_inputs_with_masked_axes_are_poisoned(examine):
    assert not examine(OPTIONAL, rounds=1).pads  # its mask is an input like others
    assert not examine(DOUBLED, rounds=1).pads
    assert examine(TOKENS, rounds=1).pads == {"input_ids": "9"}


FAILURE = Failure(
    round=1,
    how="in random groups",
    requests=[
        "1 row(s), tokens 4",
        "2 row(s), tokens 2",
        "1 row(s), tokens 9",
        "3 row(s), tokens 1",
    ],
    mismatch=Mismatch(2, "output 'y': 1 of 4 element(s) differ"),
    groups=[[1, 2, 3], [0]],
    smallest=[[2, 3]],
    left=Mismatch(2, "output 'y': 2 of 4 element(s) differ"),
)
REPORT = Report(
    model="encoder",
    seed=7,
    rounds=2,
    requests=8,
    executions=21,
    shared=5,
    pads={"input_ids": "9"},
    changed=3,
    moved=1.49e-07,
    failure=FAILURE,
)


def test_a_failure_shows_its_execution_and_the_fewest_requests_that_fail():
    assert not REPORT.passed
    assert (
        str(REPORT)
        == """\
encoder: 2 round(s) of seed 7, 8 request(s) in 21 executions, 5 of them shared
padding of 'input_ids' poisoned with 9
leakage: none: 3 answer(s) stayed the same to the bit after the values of all other requests changed
rounding: answers differ from those of the requests alone by at most 1.5e-07
FAILED
round 1, requests executed in random groups:
  request 2: output 'y': 1 of 4 element(s) differ
its execution:
    request 1: 2 row(s), tokens 2
    request 2: 1 row(s), tokens 9
    request 3: 3 row(s), tokens 1
the fewest requests that fail:
    request 2: 1 row(s), tokens 9
    request 3: 3 row(s), tokens 1
  request 2: output 'y': 2 of 4 element(s) differ"""
    )


def test_several_executions_are_numbered():
    lines = replace(FAILURE, smallest=[[0], [2, 3]]).lines()
    assert lines[lines.index("the fewest requests that fail, 2 executions:") :] == [
        "the fewest requests that fail, 2 executions:",
        "  execution 1",
        "    request 0: 1 row(s), tokens 4",
        "  execution 2",
        "    request 2: 1 row(s), tokens 9",
        "    request 3: 3 row(s), tokens 1",
        "  request 2: output 'y': 2 of 4 element(s) differ",
    ]


def test_a_passed_report_lists_the_counts():
    report = replace(REPORT, failure=None, shared=0, pads={}, changed=0, moved=0.0)
    assert report.passed
    assert report.lines() == [
        "encoder: 2 round(s) of seed 7, 8 request(s) in 21 executions, 0 of them shared",
        "no two requests shared an execution, so their independence is not shown",
        "rounding: answers differ from those of the requests alone by at most 0",
        "passed: every answer is that of the request alone",
    ]


MEMBERS = st.integers(0, 9)
GROUPS = st.permutations(range(10)).flatmap(
    lambda order: st.lists(st.integers(1, 9), max_size=4).map(
        lambda cuts: [
            order[start:end]
            for start, end in zip([0, *sorted(set(cuts))], [*sorted(set(cuts)), 10], strict=True)
        ]
    )
)


@given(GROUPS, st.frozensets(MEMBERS, min_size=1, max_size=3))
def test_the_failing_members_are_left_wherever_they_are(groups, culprits):
    reduced = smallest_failing(groups, lambda less: culprits <= set(chain.from_iterable(less)))
    assert sorted(chain.from_iterable(reduced)) == sorted(culprits)
    assert all(any(set(group) <= set(own) for own in groups) for group in reduced)


@given(GROUPS, MEMBERS, MEMBERS)
def test_members_that_fail_only_together_stay_together(groups, one, other):
    def fails(less):
        return any({one, other} <= set(group) for group in less)

    reduced = smallest_failing(groups, fails)
    if fails(groups):
        assert [set(group) for group in reduced] == [{one, other}]
    else:
        assert reduced is None
