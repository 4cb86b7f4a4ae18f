"""Who uses whom: the order of loading, what a change touches, what cannot be loaded at all."""

import pytest

from reference_server.core.errors import Code
from reference_server.repository.ensembles import DependencyGraph
from reference_server.repository.model_ids import ModelId


def graph(steps, explicit=()):
    """A graph of models, by name, each with the models that it uses."""
    result = DependencyGraph()
    for name, used in steps.items():
        result.put(ids([name])[0], dict.fromkeys(used, frozenset()), explicit=name in explicit)
    return result


def ids(names):
    """Of names, and of `namespace::name`."""
    return [ModelId(*reversed(name.split("::"))) for name in names]


@pytest.mark.parametrize(
    ("steps", "waves"),
    [
        pytest.param({}, [], id="none"),
        pytest.param({"a": [], "b": []}, [["a", "b"]], id="independent"),
        pytest.param({"a": ["b"], "b": []}, [["b"], ["a"]], id="one uses another"),
        pytest.param(
            {"a": ["b", "c"], "b": ["c"], "c": [], "d": ["c"]},
            [["c"], ["b", "d"], ["a"]],
            id="a diamond",
        ),
        pytest.param({"a": ["m"]}, [["a"]], id="what is not there is not waited for"),
        pytest.param({"a": ["a"], "b": [], "c": ["a"]}, [["b"], ["a", "c"]], id="circle"),
    ],
)
def test_an_ensemble_comes_after_what_it_uses(steps, waves):
    assert list(graph(steps).waves(ids(steps))) == waves


def test_only_those_asked_for_are_ordered():
    assert list(graph({"a": ["b"], "b": ["m"], "m": []}).waves(ids(["a", "m"]))) == [["a", "m"]]


@pytest.mark.parametrize(
    ("steps", "texts"),
    [
        pytest.param({"e": ["e"]}, {"e": "e -> ... -> e -> e"}, id="itself"),
        pytest.param(
            {"a": ["b"], "b": ["a"]}, dict.fromkeys("ab", "a -> ... -> b -> a"), id="each other"
        ),
        pytest.param(
            {"a": ["b"], "b": ["c"], "c": ["b"]},
            dict.fromkeys("bc", "b -> ... -> c -> b"),
            id="who only uses a circle is not in it",
        ),
        pytest.param(
            {"e": ["e"], "good": []}, {"e": "e -> ... -> e -> e"}, id="others are not disturbed"
        ),
    ],
)
def test_a_circle_is_refused(steps, texts):
    errors = graph(steps).errors(ids(steps))
    assert {name: error.message for name, error in errors.items()} == {
        name: f"circular dependency between ensembles: {text}" for name, text in texts.items()
    }
    assert all(error.code is Code.INVALID_ARG for error in errors.values())


def test_what_misses_a_model_is_refused():
    (error,) = graph({"e": ["n", "m", "k"], "k": []}).errors(ids(["e", "k"])).values()
    assert error.message == ("ensemble e contains models that are not available or ambiguous: m, n")


CHAIN = {"outer": ["e"], "e": ["m"], "f": ["m"], "m": []}


@pytest.mark.parametrize(
    ("names", "users"),
    [("m", {"e", "f", "outer"}), ("e", {"outer"}), ("outer", set()), ("nobody", set())],
)
def test_users_are_direct_and_indirect(names, users):
    assert graph(CHAIN).users(ids([names])) == users


@pytest.mark.parametrize(
    ("name", "used"), [("m", {"m"}), ("e", {"e", "m"}), ("outer", {"outer", "e", "m"})]
)
def test_used_are_direct_and_indirect(name, used):
    assert graph(CHAIN).used(ids([name])) == used


@pytest.mark.parametrize(
    ("steps", "explicit", "name", "removed"),
    [
        pytest.param({"e": ["m"], "m": []}, "e", "e", {"e", "m"}, id="what it alone used"),
        pytest.param({"e": ["m"], "m": []}, "em", "e", {"e"}, id="but not what was asked for"),
        pytest.param({"e": ["m"], "f": ["m"], "m": []}, "ef", "e", {"e"}, id="nor what is used"),
        pytest.param(
            {"o": ["e"], "e": ["m"], "m": []}, "o", "o", {"o", "e", "m"}, id="all the way down"
        ),
        pytest.param({"e": ["m"], "m": []}, "", "m", {"m"}, id="its users stay"),
        pytest.param({"m": []}, "", "nobody", set(), id="nobody"),
    ],
)
def test_removing_with_what_is_unused(steps, explicit, name, removed):
    models = graph(steps, explicit)
    assert models.remove(ids([name]), with_unused=True) == removed
    assert [left for left in steps if left in models] == [
        left for left in steps if left not in removed
    ]


def test_removing_one_alone():
    models = graph({"e": ["m"], "m": []})
    assert models.remove(ids(["e"])) == {"e"}
    assert "m" in models


# -- namespaces

TWO = {
    "one::m": [],
    "two::m": [],
    "two::only": [],
    "one::e": ["m", "only"],
    "two::e": ["m"],
    "three::e": ["m"],
}


def test_an_ensemble_means_models_of_its_own_namespace_first():
    models = graph(TWO)
    assert models.step_ids(*ids(["one::e"])) == {"m": "one::m", "only": "two::only"}
    assert models.step_ids(*ids(["two::e"])) == {"m": "two::m"}
    assert models.step_ids(*ids(["three::e"])) == {}


def test_a_name_that_others_have_several_times_is_ambiguous():
    (error,) = graph(TWO).errors(ids(TWO)).values()
    assert error.message == (
        "ensemble three::e contains models that are not available or ambiguous: m"
    )


def test_a_change_touches_who_means_the_model_and_who_would_mean_it():
    models = graph(TWO)
    assert models.users(ids(["two::m"])) == {"two::e", "three::e"}
    models.remove(ids(["two::m"]))
    assert models.users(ids(["two::m"])) == {"two::e", "three::e"}
    assert models.step_ids(*ids(["two::e"])) == {"m": "one::m"}
    assert models.step_ids(*ids(["three::e"])) == {"m": "one::m"}
