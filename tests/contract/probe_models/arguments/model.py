"""Calls every function of the model API with every kind of value for each argument.

The answer is JSON: for each call and argument, the kinds by outcome. An outcome is `accepted` or
the class of the exception. The model runs unchanged on both servers.
"""

import json

import numpy as np
import triton_python_backend_utils as pb_utils

from .calls import calls
from .kinds import kinds


def outcome(call, arguments, named):
    try:
        call.make()(*arguments, **named)
    except Exception as error:
        return type(error).__name__
    return "accepted"


def ways(call, at):
    """Return functions that place a value as the argument at index `at`, by their names."""
    target = call.arguments[at]
    before, after = call.arguments[:at], call.arguments[at + 1 :]
    if target.name is None:
        goods = [argument.good for argument in before]
        needed = [argument.good for argument in after if argument.needed]
        return {
            "by place": lambda value: ([*goods, value, *needed], {}),
            "by name": lambda value: (goods, {f"arg{at}": value}),
        }
    others = {a.name: a.good for a in call.arguments if not a.label and a.name != target.name}
    names = list(dict.fromkeys(a.name for a in before if a.name != target.name))
    needed = {a.name for a in call.arguments if a.needed} - {target.name}
    later = {name: others[name] for name in others if name in needed - set(names)}
    return {
        "by place": lambda value: ([*(others[name] for name in names), value], later),
        "by name": lambda value: (
            [], {name: others[name] for name in others if name in needed} | {target.name: value}),
    }  # fmt: skip


def amounts(call):
    """Yield wrong numbers of arguments with their names."""
    whole = [argument for argument in call.arguments if not argument.label]
    good = [argument.good for argument in whole]
    yield "none", [], {}
    yield "one more", [*good, 1], {}
    yield "an unknown name", good, {"unknown": 1}
    if whole and whole[0].name:
        yield "one twice", good, {whole[0].name: good[0]}
    if len(whole) > 1:
        yield "one fewer", good[1:], {}


def matrix(asked):
    """Return the kinds by call, argument with the way of passing it, and outcome."""
    result = {}
    for call in calls(asked):
        rows = result[call.name] = {}
        for at, argument in enumerate(call.arguments):
            label = argument.label or argument.name or f"arg{at}"
            for way, given in ways(call, at).items():
                row = rows[f"{label} {way}"] = {}
                for kind, value in kinds(argument.text, argument.number).items():
                    if kind not in argument.excluded:
                        try:
                            wrapped = argument.wrap(value)
                        except Exception:  # an unhashable value cannot be a key
                            continue
                        row.setdefault(outcome(call, *given(wrapped)), []).append(kind)
        amount = rows["the number of arguments"] = {}
        for name, arguments, named in amounts(call):
            amount.setdefault(outcome(call, arguments, named), []).append(name)
    return result


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, asked):
        text = json.dumps(matrix(asked))
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor("TEXT", np.array([text], dtype=object))])  # fmt: skip
