"""`max_inflight_requests`: the limit of in-flight requests of each step of an ensemble."""

from hypothesis import given
from hypothesis import strategies as st
from server.support.configs import ensemble, step
from server.support.ensembles import Bench, failure, values

from reference_server.core.errors import invalid_arg
from reference_server.core.request import Cancellation, InferResponse

CHAIN = ensemble(step("a", {"X": "I"}, {"Y": "mid"}), step("b", {"X": "mid"}, {"Y": "O"}))
LIMIT = "ensemble_scheduling { max_inflight_requests: %d"


def limited(most, **more):
    return Bench(CHAIN.replace("ensemble_scheduling {", LIMIT % most), **more)


def answer(bench, model):
    """Answer the oldest running step of `model`."""
    request = next(each for each in bench.steps if each.model_name == model)
    bench.steps.remove(request)
    made = [tensor.renamed("Y") for tensor in request.inputs.values()]
    request.sink.send(InferResponse(model, 1, request.id, made))


def test_limit_is_shared_by_all_requests():
    bench = limited(2)
    answers = [bench.submit() for _ in range(4)]
    assert bench.running() == ["a", "a"]
    answer(bench, "a")
    assert sorted(bench.running()) == ["a", "a", "b"]
    answer(bench, "a")
    answer(bench, "a")
    # Two requests are in step `b`, and one waits for it.
    assert sorted(bench.running()) == ["a", "b", "b"]
    while bench.steps:
        answer(bench, bench.steps[0].model_name)
    assert [values(each.wait()) for each in answers] == [{"O": [1, 2]}] * 4


def test_each_step_has_its_own_limit():
    bench = limited(1)
    bench.submit()
    answer(bench, "a")
    bench.submit()
    assert sorted(bench.running()) == ["a", "b"]


def test_refused_step_releases_its_place():
    bench = limited(1, refuses={"b": invalid_arg("full")})
    answers = [bench.submit() for _ in range(3)]
    for _ in answers:
        answer(bench, "a")
    assert [failure(each)[1] for each in answers] == ["in ensemble 'e', full"] * 3
    assert bench.steps == []
    assert limits_are_free(bench)


def test_failed_step_releases_its_place():
    bench = limited(1)
    first, second = bench.submit(), bench.submit()
    bench.answer("a", error=invalid_arg("no"))
    assert failure(first)[1] == "in ensemble 'e', no"
    assert bench.running() == ["a"]
    answer(bench, "a")
    answer(bench, "b")
    assert values(second.wait()) == {"O": [1, 2]}
    assert limits_are_free(bench)


def test_cancelled_waiting_step_releases_its_place():
    bench = limited(1)
    cancellation = Cancellation()
    bench.submit()
    cancelled, last = bench.submit(cancellation=cancellation), bench.submit()
    cancellation.cancel()
    answer(bench, "a")
    assert failure(cancelled)[0].name == "CANCELLED"
    assert sorted(bench.running()) == ["a", "b"]
    while bench.steps:
        answer(bench, bench.steps[0].model_name)
    assert values(last.wait()) == {"O": [1, 2]}
    assert limits_are_free(bench)


@given(st.integers(1, 3), st.lists(st.booleans(), max_size=30))
def test_limit_is_never_exceeded(most, script):
    """In `script`, True submits a request and False answers a step; finally all are answered."""
    bench = limited(most)
    answers = []
    for submits in script:
        if submits:
            answers.append(bench.submit())
        elif bench.steps:
            answer(bench, bench.steps[-1].model_name)
        assert all(bench.running().count(model) <= most for model in "ab")
    while bench.steps:
        answer(bench, bench.steps[0].model_name)
    assert all(values(each.wait()) == {"O": [1, 2]} for each in answers)
    assert limits_are_free(bench)


def limits_are_free(bench):
    """Return whether all places are free: a new request is not delayed."""
    bench._refuses.clear()
    submitted = bench.submit()
    answer(bench, "a")
    answer(bench, "b")
    return values(submitted.wait()) == {"O": [1, 2]} and not bench.steps
