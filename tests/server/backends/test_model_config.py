"""Tests of ModelConfig: additions and contradictions."""

import json

import pytest
from triton_python_backend_utils import ModelConfig

FUNCTION = "auto-complete-config function for model 'm'"


def config(**fields) -> ModelConfig:
    return ModelConfig(
        json.dumps({"name": "m", "max_batch_size": 0, "input": [], "output": []} | fields)
    )


def entry(**fields) -> dict:
    return {"name": "X", "data_type": "TYPE_FP32", "dims": [1]} | fields


def refusal(call, *arguments) -> str:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the text is compared as a whole
        call(*arguments)
    return str(caught.value)


def test_the_batch_size_may_grow_only():
    completed = config(max_batch_size=8)
    assert completed.set_max_batch_size(16) is None
    assert completed.as_dict()["max_batch_size"] == 16
    assert refusal(completed.set_max_batch_size, 2) == (
        f"configuration specified max_batch_size 16, but in {FUNCTION} specified max_batch_size 2"
    )


def test_dynamic_batching_is_chosen_once():
    completed = config()
    completed.set_dynamic_batching()
    completed.as_dict()["dynamic_batching"]["preferred_batch_size"] = [4]
    completed.set_dynamic_batching()
    assert completed.as_dict()["dynamic_batching"] == {"preferred_batch_size": [4]}


@pytest.mark.parametrize("scheduler", ["sequence_batching", "ensemble_scheduling"])
def test_another_scheduler_is_not_replaced(scheduler):
    assert refusal(config(**{scheduler: {}}).set_dynamic_batching) == (
        f"Configuration specified scheduling_choice as '{scheduler}', but {FUNCTION} "
        "tries to set scheduling_choice as 'dynamic_batching'"
    )


@pytest.mark.parametrize("kind", ["input", "output"])
def test_a_new_tensor_is_appended_and_a_known_one_completed(kind):
    completed = config(**{kind: [entry(data_type="TYPE_INVALID", dims=[], extra=1)]})
    add = getattr(completed, f"add_{kind}")
    assert add(entry()) is None
    add(entry(name="Y", dims=[-1]))
    assert completed.as_dict()[kind] == [entry(extra=1), entry(name="Y", dims=[-1])]


def test_an_input_may_say_that_it_is_optional():
    completed = config(input=[entry()])
    completed.add_input(entry(optional=True))
    assert completed.as_dict()["input"] == [entry(optional=True)]


@pytest.mark.parametrize(
    ("kind", "given", "text"),
    [
        (
            "input",
            entry(format=1),
            f"input 'X' in {FUNCTION} contains property other than "
            "'name', 'data_type', 'dims' and 'optional'.",
        ),
        (
            "output",
            entry(optional=True),
            f"output 'X' in {FUNCTION} contains property other than "
            "'name', 'data_type' and 'dims'.",
        ),
        ("input", {}, f"input in {FUNCTION} is missing 'name' property."),
        ("output", {"dims": []}, f"output in {FUNCTION} is missing 'name' property."),
        ("input", {"name": "X"}, f"input 'X' in {FUNCTION} is missing 'data_type' property."),
        (
            "output",
            {"name": "X", "data_type": "TYPE_FP32"},
            f"output 'X' in {FUNCTION} is missing 'dims' property.",
        ),
        (
            "input",
            entry(data_type="TYPE_INT32"),
            "unable to load model 'm', configuration expects datatype TYPE_FP32 for input 'X', "
            "model provides TYPE_INT32",
        ),
        (
            "output",
            entry(data_type="TYPE_INT32"),
            "unable to load model 'm', configuration expects datatype TYPE_FP32 for output 'X', "
            "model provides TYPE_INT32",
        ),
        (
            "output",
            entry(dims=[2]),
            "model 'm', tensor 'X': the model expects dims [2] "
            "but the model configuration specifies dims [1]",
        ),
        (
            "input",
            entry(dims=(1,)),
            "model 'm', tensor 'X': the model expects dims (1,) "
            "but the model configuration specifies dims [1]",
        ),
        (
            "input",
            entry(optional=True),
            "model 'm', tensor 'X': the model expects optional True "
            "but the model configuration specifies optional False",
        ),
    ],
)
def test_contradictions_are_refused(kind, given, text):
    completed = config(input=[entry(optional=False)], output=[entry()])
    assert refusal(getattr(completed, f"add_{kind}"), given) == text
    assert completed.as_dict()["input"] == [entry(optional=False)]


def test_a_foreign_key_without_a_name_is_a_key_error():
    with pytest.raises(KeyError, match=r"^'name'$"):
        config().add_input({"format": 1})


def test_the_transaction_policy_has_one_property():
    completed = config()
    completed.set_model_transaction_policy({})
    assert completed.as_dict()["model_transaction_policy"] == {}
    completed.set_model_transaction_policy({"decoupled": False})
    completed.set_model_transaction_policy({"decoupled": False})
    assert completed.as_dict()["model_transaction_policy"] == {"decoupled": False}
    assert refusal(completed.set_model_transaction_policy, {"decoupled": True}) == (
        "trying to change decoupled property in auto-complete-config for model 'm', "
        "which is already set to 'False'."
    )
    assert refusal(completed.set_model_transaction_policy, {"coupled": True}) == (
        f"model transaction property in {FUNCTION} contains property other than 'decoupled'."
    )
