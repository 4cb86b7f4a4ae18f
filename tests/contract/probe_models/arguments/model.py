"""Calls every function of the model API with every kind of value for each argument.

It answers with JSON: for each call and argument, what came of each kind. Runs as it is on either
server. What should come of them is not said here: it is asked.
"""

import json
import re

import numpy as np
import triton_python_backend_utils as pb_utils

from .calls import calls, failure, shown
from .kinds import kinds


def outcome(call, value, arguments, named):
    """What comes of one call, without what differs between runs and releases of Python."""
    try:
        text = f"= {call.read(call.make()(*arguments, **named))}"
    except Exception as error:
        text = failure(error, [*map(shown, arguments), *map(shown, named.values())])
    given = [", ".join(map(shown, arguments))] if arguments else []
    if named:
        given.append("kwargs: " + ", ".join(f"{name}={shown(v)}" for name, v in named.items()))
    text = without_addresses(text)
    # A text that repeats the arguments says no more than that; how they look is their affair.
    says, invoked, repeated = text.partition("Invoked with: ")
    given = without_addresses("; ".join(given))
    of_method = re.sub(r"^<c_python_backend_utils\.\w+ object at 0x>(, |; |$)", "", repeated)
    if invoked and given in (repeated, of_method):
        return f"{says}{invoked}*"
    # So it is how Python's own texts call the class of a value.
    kind = type(value)
    names = f"({re.escape(kind.__module__)}\\.)?({kind.__name__}|{kind.__qualname__})"
    text = text.replace("'c_python_backend_utils.Tensor'", "'Tensor'")  # in an array
    return re.sub(f"(?<!<class )'{names}'", "'*'", text)


def without_addresses(text):
    return re.sub(r"\b0x[0-9a-f]{6,}", "0x", text)


def ways(call, at):
    """How the argument at `at` can be given, by the way's name: functions of a value."""
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
    """Too few arguments and too many, by what is wrong with them."""
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
    """What comes of every call: by call, argument and way, the kinds by outcome."""
    told = {}
    for call in calls(asked):
        rows = told[call.name] = {}
        for at, argument in enumerate(call.arguments):
            label = argument.label or argument.name or f"arg{at}"
            for way, given in ways(call, at).items():
                row = rows[f"{label} {way}"] = {}
                for kind, value in kinds(argument.text, argument.number).items():
                    if kind not in argument.unasked:
                        try:
                            wrapped = argument.wrap(value)
                        except Exception:  # some cannot be in a set, or a key
                            continue
                        row.setdefault(outcome(call, value, *given(wrapped)), []).append(kind)
        amount = rows["the number of arguments"] = {}
        for name, arguments, named in amounts(call):
            amount.setdefault(outcome(call, call, arguments, named), []).append(name)
    return told


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, asked):
        # As releases of NumPy before 2.0 show numbers; all of them have this choice.
        with np.printoptions(legacy="1.25" if np.__version__ >= "2" else False):
            text = json.dumps(matrix(asked))
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor("TEXT", np.array([text], dtype=object))])  # fmt: skip
