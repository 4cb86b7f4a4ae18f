"""Dependencies between models: the order of loading, affected models, and errors."""

import pytest

from reference_server.core.errors import Code
from reference_server.repository.ensembles import DependencyGraph
from reference_server.repository.model_folders import ModelId


def graph(steps, explicit=()):
    """Return a graph; `steps` maps each model to the models that it uses."""
    result = DependencyGraph()
    for name, used in steps.items():
        result.put(ids([name])[0], dict.fromkeys(used, frozenset()), explicit=name in explicit)
    return result


def ids(names):
    """Return the ids of names; a name may have the form `namespace::name`."""
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
        pytest.param({"a": ["m"]}, [["a"]], id="missing models are ignored"),
        pytest.param({"a": ["a"], "b": [], "c": ["a"]}, [["b"], ["a", "c"]], id="cycle"),
    ],
)
def test_ensembles_are_loaded_after_their_models(steps, waves):
    assert list(graph(steps).waves(ids(steps))) == waves


def test_waves_contain_only_the_given_models():
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
            id="a user of a cycle is not in it",
        ),
        pytest.param(
            {"e": ["e"], "good": []}, {"e": "e -> ... -> e -> e"}, id="others are not affected"
        ),
    ],
)
def test_circular_dependency_is_an_error(steps, texts):
    errors = graph(steps).errors(ids(steps))
    assert {name: error.message for name, error in errors.items()} == {
        name: f"circular dependency between ensembles: {text}" for name, text in texts.items()
    }
    assert all(error.code is Code.INVALID_ARG for error in errors.values())


def test_missing_models_are_an_error():
    (error,) = graph({"e": ["n", "m", "k"], "k": []}).errors(ids(["e", "k"])).values()
    assert error.message == ("ensemble e contains models that are not available or ambiguous: m, n")


CHAIN = {"outer": ["e"], "e": ["m"], "f": ["m"], "m": []}


@pytest.mark.parametrize(
    ("name", "used"), [("m", {"m"}), ("e", {"e", "m"}), ("outer", {"outer", "e", "m"})]
)
def test_used_includes_indirectly_used_models(name, used):
    assert graph(CHAIN).used(ids([name])) == used


@pytest.mark.parametrize(
    ("steps", "explicit", "name", "removed"),
    [
        pytest.param({"e": ["m"], "m": []}, "e", "e", {"e", "m"}, id="unused step"),
        pytest.param({"e": ["m"], "m": []}, "em", "e", {"e"}, id="explicit step stays"),
        pytest.param({"e": ["m"], "f": ["m"], "m": []}, "ef", "e", {"e"}, id="used step stays"),
        pytest.param(
            {"o": ["e"], "e": ["m"], "m": []}, "o", "o", {"o", "e", "m"}, id="indirect steps"
        ),
        pytest.param({"e": ["m"], "m": []}, "", "m", {"m"}, id="users stay"),
        pytest.param({"m": []}, "", "missing", set(), id="missing"),
    ],
)
def test_remove_with_unused_models(steps, explicit, name, removed):
    models = graph(steps, explicit)
    assert models.remove(ids([name]), with_unused=True) == removed
    assert [left for left in steps if left in models] == [
        left for left in steps if left not in removed
    ]


# -- namespaces

TWO = {
    "one::m": [],
    "two::m": [],
    "two::only": [],
    "one::e": ["m", "only"],
    "two::e": ["m"],
    "three::e": ["m"],
}


def test_steps_resolve_in_the_own_namespace_first():
    models = graph(TWO)
    assert models.present_steps(*ids(["one::e"])) == {"m": "one::m", "only": "two::only"}
    assert models.present_steps(*ids(["two::e"])) == {"m": "two::m"}
    assert models.present_steps(*ids(["three::e"])) == {}


def test_a_name_in_several_other_namespaces_is_ambiguous():
    (error,) = graph(TWO).errors(ids(TWO)).values()
    assert error.message == (
        "ensemble three::e contains models that are not available or ambiguous: m"
    )


def test_users_include_ensembles_that_would_resolve_to_the_model():
    models = graph(TWO)
    assert models.users(ids(["two::m"])) == {"two::e", "three::e"}
    models.remove(ids(["two::m"]))
    assert models.users(ids(["two::m"])) == {"two::e", "three::e"}
    assert models.present_steps(*ids(["two::e"])) == {"m": "one::m"}
    assert models.present_steps(*ids(["three::e"])) == {"m": "one::m"}
