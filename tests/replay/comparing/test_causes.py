"""Seeded faults: each is found once, with its kind and its condition, and nothing else is named."""

import gzip
import itertools
import re
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import pytest
from replay.traffic import MS, write_records

from triton_replay.__main__ import main
from triton_replay.capture.files import Capture, Exchange, read_capture
from triton_replay.capture.records import Closing, Opening, Request, Response
from triton_replay.comparing import conditions, groups
from triton_replay.comparing.comparison import compare_captures
from triton_replay.comparing.differences import Difference, compare_answers
from triton_replay.comparing.tolerances import Tolerances
from triton_replay.wire.answers import Tensor, wire_of
from triton_replay.wire.bodies import tensor_body
from triton_replay.wire.grpc_messages import framed, messages

COUNT = 240
DATATYPES = {"x": "FP32", "y": "FP32", "ids": "INT64", "n": "INT64", "text": "BYTES"}
WORDS = [
    "where",
    "is",
    "my",
    "parcel",
    "please",
    "help",
    "order",
    "number",
    "late",
    "again",
    "thanks",
]


@dataclass
class Asked:
    """A request as a fault sees it."""

    position: int
    at: int
    took: int
    connection: int
    protocol: str
    """Either "JSON", "binary" or "gRPC"."""
    zipped: bool
    parameters: dict
    inputs: dict
    chance: float
    """A random number on which nothing else depends."""
    step: int = 0
    """Step of its sequence, from 1; 0 without one."""
    repeats: bool = False
    in_flight: int = 0
    on_connection: int = 0
    idle: float = 0.0
    """Milliseconds since the previous request."""

    def __post_init__(self):
        self.x, self.ids, self.texts = (self.inputs[name] for name in ("x", "ids", "text"))
        self.rows, self.length = self.x.shape
        with np.errstate(all="ignore"):
            labels = np.array([text.upper()[:12] for text in self.texts], object)
            self.answer = {"y": 2 * self.x, "n": self.ids.sum(axis=1), "label": labels}


def traffic(seed):
    """Return requests in bursts, over three protocols and eight connections, some in sequences."""
    rng = np.random.default_rng(seed)
    asked, sequences, at = [], {}, 0
    protocols = ["JSON"] * 3 + ["binary"] * 2 + ["gRPC"] * 3
    for position in range(COUNT):
        idle = rng.choice([rng.exponential(20), 1.0, rng.uniform(300, 600)], p=[0.6, 0.32, 0.08])
        at += int(idle * MS)
        single = [one for one in asked if "sequence_id" not in one.parameters]
        if single and rng.random() < 0.15:
            old = single[rng.integers(len(single))]
            asked.append(replace(old, position=position, at=at, chance=rng.random()))
            continue
        parameters, connection = parameters_of(rng), int(rng.integers(8))
        if rng.random() < 0.35:
            slot = int(rng.integers(6))
            number, steps = sequences.get(slot, (0, 9))
            number, steps = (position + 1, 1) if steps == 9 else (number, steps + 1)
            sequences[slot] = number, steps
            parameters["sequence_id"] = number
            parameters |= {"sequence_start": True} if steps == 1 else {}
        protocol = protocols[connection]
        zipped = protocol != "gRPC" and rng.random() < 0.25
        took = int(rng.uniform(3, 15) * MS)
        shared = position, at, took, connection, protocol, zipped
        asked.append(Asked(*shared, parameters, inputs_of(rng), rng.random()))
    return as_sent(asked)


def as_sent(asked):
    """Return requests with the properties that depend on the others."""
    on_connection, steps, seen, found, last = Counter(), Counter(), set(), [], 0
    for position, one in enumerate(asked):
        number, end = one.parameters.get("sequence_id"), one.at + one.took
        on_connection[one.connection] += 1
        steps[number] += 1
        found.append(
            replace(
                one,
                position=position,
                step=steps[number] if number else 0,
                repeats=id(one.inputs) in seen,
                in_flight=sum(o.at <= end and one.at <= o.at + o.took for o in asked),
                on_connection=on_connection[one.connection],
                idle=(one.at - last) / MS if position else 0.0,
            )
        )
        seen.add(id(one.inputs))
        last = one.at
    return found


def parameters_of(rng):
    found = {"level": int(rng.integers(100))}
    if rng.random() < 0.7:
        found["priority"] = int(rng.integers(1, 4))
    if rng.random() < 0.6:
        found["mode"] = str(rng.choice(["fast", "slow", "exact"]))
    return found


def inputs_of(rng):
    rows, length = int(rng.integers(1, 7)), int(rng.integers(1, 49))
    x = (rng.uniform(0.1, 1, (rows, length)) * 10 ** rng.uniform(-2, 5)).astype(np.float32)
    for special in (np.nan, np.inf, 7.0, -x.flat[0], 1e-40):
        if rng.random() < 0.12:
            x.flat[rng.integers(x.size)] = special
    ids = rng.integers(400, size=(rows, length))
    if rng.random() < 0.15:
        ids.flat[rng.integers(ids.size)] = 13
    texts = [" ".join(rng.choice(WORDS, int(rng.integers(1, 30)))) for _ in range(rows)]
    for special in ("", "Zürich", "refund"):
        if rng.random() < 0.15:
            row = rng.integers(rows)
            texts[row] = f"{texts[row]} {special}" if special else ""
    encoded = np.empty(rows, object)
    encoded[:] = [text.encode() for text in texts]
    return {"x": x, "ids": ids, "text": encoded}


# -- requests and responses


def request(one, model="m"):
    """Return the recorded request."""
    tensors = [
        (name, Tensor(DATATYPES[name], values.shape, values)) for name, values in one.inputs.items()
    ]
    shared = one.position, one.connection, one.at, one.at, "POST"
    if one.protocol == "gRPC":
        message = messages.ModelInferRequest(model_name=model)
        for name, tensor in tensors:
            message.inputs.add(name=name, datatype=tensor.datatype, shape=tensor.shape)
            message.raw_input_contents.append(wire_of(tensor))
        for name, value in one.parameters.items():
            kind = {bool: "bool_param", int: "int64_param", str: "string_param"}[type(value)]
            setattr(message.parameters[name], kind, value)
        body = framed([message])
        target = "/inference.GRPCInferenceService/ModelInfer"
        return Request(*shared, target, (), len(body), body, protocol="grpc")
    headers, body = encoded("inputs", tensors, one.protocol == "binary", one.parameters)
    if one.zipped:
        headers, body = (*headers, ("Content-Encoding", "gzip")), gzip.compress(body, mtime=0)
    return Request(*shared, f"/v2/models/{model}/infer", headers, len(body), body)


def encoded(key, tensors, binary, parameters):
    described, data = [], []
    for name, tensor in tensors:
        entry = {"name": name, "datatype": tensor.datatype, "shape": tensor.shape}
        if binary:
            data.append(wire_of(tensor))
            entry["parameters"] = {"binary_data_size": len(data[-1])}
        else:
            flat = tensor.values.ravel().tolist()
            entry["data"] = [e.decode() if isinstance(e, bytes) else e for e in flat]
        described.append(entry)
    headers, body = tensor_body({key: described, "parameters": parameters}, data)
    return (headers, body) if binary else ((), body)


def response(one, answer):
    """Return the response with these outputs, with this status, or an incomplete one."""
    ended = "server" if answer == "lost" else "complete"
    number, end = one.position, one.at + one.took
    status = answer if isinstance(answer, int) else 200
    tensors = (
        []
        if not isinstance(answer, dict)
        else [
            (name, Tensor(DATATYPES.get(name, "BYTES"), values.shape, values))
            for name, values in answer.items()
        ]
    )
    if one.protocol != "gRPC":
        headers, body = encoded("outputs", tensors, True, {})
        return Response(number, end, end, status, headers, len(body), body, ended)
    message = messages.ModelInferResponse(model_name="m")
    for name, tensor in tensors:
        message.outputs.add(name=name, datatype=tensor.datatype, shape=tensor.shape)
        message.raw_output_contents.append(wire_of(tensor))
    body = framed([message])
    code = str(13 if status == 500 else 0)
    trailers = (("grpc-status", code),)
    return Response(number, end, end, 200, (), len(body), body, ended, trailers=trailers)


def capture(exchanges):
    return Capture("c", Opening("s:1", "2026", "0", {}), tuple(exchanges), None, None)


# -- faults: for a request the changed answer, or None for the right one


def when(condition, change):
    return lambda one: change(one) if condition(one) else None


def scaled(one):
    """Change all values of y."""
    return one.answer | {"y": one.answer["y"] * np.float32(1.5) + np.float32(1)}


def half(one):
    with np.errstate(all="ignore"):
        scale = np.abs(finite(one.x)).max(initial=1e-45)
        return one.answer | {"y": (one.answer["y"] / scale).astype(np.float16).astype("f4") * scale}


def one_more(one):
    return one.answer | {"n": one.answer["n"] + 1}


def one_row(one):
    y = one.answer["y"].copy()
    y[-1] += 1 + abs(y[-1])
    return one.answer | {"y": y}


def both(one):
    return scaled(one) | {"n": one.answer["n"] * 2}


def not_a_number(one):
    return one.answer | {"y": np.full_like(one.x, np.nan)}


def without_label(one):
    return {"y": one.answer["y"], "n": one.answer["n"]}


def cut(one):
    return one.answer | {"y": one.answer["y"][:, :-1]}


def first_row_last(one):
    return one.answer | {name: np.roll(values, 1, axis=0) for name, values in one.answer.items()}


def drift(one):
    """Differ by amounts from rounding to large ones."""
    y = one.answer["y"] * np.float32(1 + 0.05 * (1000 * one.chance % 1))
    return one.answer | {"y": y}


def last_token_lost(one):
    return one.answer | {"n": one.ids[:, :-1].sum(axis=1)}


def any_of(*faults):
    return lambda one: next(
        (found for found in (f(one) for f in faults) if found is not None), None
    )


def finite(x):
    return x[np.isfinite(x)]


VALUES = "values( of some rows)?|NaN|infinity"
FAULTS = {
    # values of inputs
    "NaN": (when(lambda r: np.isnan(r.x).any(), scaled), VALUES, "x contains NaN"),
    "infinity": (
        when(lambda r: np.isinf(r.x).any(), not_a_number),
        "NaN",
        "x contains an infinity",
    ),
    "sign": (when(lambda r: (r.x < 0).any(), both), VALUES, "x contains negative numbers"),
    "special value": (when(lambda r: (r.x == 7).any(), scaled), VALUES, "x contains 7"),
    "token id": (when(lambda r: (r.ids == 13).any(), one_more), "off by one", "ids contains 13"),
    "subnormal": (
        when(lambda r: ((r.x > 0) & (r.x < 1e-39)).any(), scaled),
        VALUES,
        "x contains subnormal numbers",
    ),
    "magnitude": (
        when(lambda r: finite(r.x).max(initial=0) > 2000, scaled),
        VALUES,
        r"largest (value|magnitude) of x is [23]\d\d\d\.?\d* or more",
    ),
    "small values": (
        when(lambda r: 0 < finite(r.x).max(initial=0) < 1, scaled),
        VALUES,
        r"largest (value|magnitude) of x is (\S+ to )?0\.[5-9]\d*( or less)?",
    ),
    "letters": (
        when(lambda r: any(not t.isascii() for t in r.texts), one_more),
        "off by one",
        "text contains text that is not ASCII|text contains the word 'Zürich'",
    ),
    "word": (
        when(lambda r: any(b"refund" in t for t in r.texts), lambda r: 500),
        "status",
        "text contains the word 'refund'",
    ),
    "empty text": (
        when(lambda r: any(not t for t in r.texts), lambda r: "lost"),
        "no complete response in B",
        "text contains the element ''|bytes of the shortest element of text is 0",
    ),
    # shapes
    "rows exactly": (when(lambda r: r.rows == 3, one_row), VALUES, "rows is 3"),
    "many rows": (
        when(lambda r: r.rows >= 4, without_label),
        "output missing",
        "rows is 4 or more",
    ),
    "one row": (when(lambda r: r.rows == 1, scaled), VALUES, "rows is 1"),
    "long": (when(lambda r: r.length >= 33, cut), "shape", "size of axis 1 of x is 3[34] or more"),
    "range": (
        when(lambda r: 16 <= r.length <= 24, scaled),
        VALUES,
        "size of axis 1 of x is 16 to 24",
    ),
    "elements": (
        when(lambda r: r.x.size > 128, drift),
        VALUES,
        r"number of elements of x is 1(29|3\d) or more",
    ),
    "long text": (
        when(lambda r: max(map(len, r.texts)) > 128, one_more),
        "off by one",
        r"bytes of the longest element of text is 1(29|3\d) or more",
    ),
    # request parameters
    "priority": (
        when(lambda r: r.parameters.get("priority") == 2, both),
        VALUES,
        "parameter priority is 2",
    ),
    "no mode": (
        when(lambda r: "mode" not in r.parameters, scaled),
        VALUES,
        "parameter mode is absent",
    ),
    "mode": (
        when(lambda r: r.parameters.get("mode") == "fast", first_row_last),
        "order",
        'parameter mode is "fast"( and rows is 2 or more)?',
    ),
    "level": (
        when(lambda r: r.parameters["level"] >= 75, scaled),
        VALUES,
        r"parameter level is 7[56] or more",
    ),
    # protocol and connection
    "gRPC": (
        when(lambda r: r.protocol == "gRPC", lambda r: r.answer | {"label": r.answer["label"][:0]}),
        "shape",
        "protocol is gRPC",
    ),
    "binary": (
        when(lambda r: r.protocol == "binary", scaled),
        VALUES,
        "form of the inputs is binary",
    ),
    "JSON": (when(lambda r: r.protocol == "JSON", one_more), "off by one", "form .* is JSON"),
    "not JSON": (
        when(lambda r: r.protocol != "JSON", one_more),
        "off by one",
        "form of the inputs is not JSON",
    ),
    "gzip": (when(lambda r: r.zipped, scaled), VALUES, "header content-encoding is gzip"),
    "connection": (when(lambda r: r.connection == 2, scaled), VALUES, "connection is 2"),
    "connection start": (
        when(lambda r: r.on_connection <= 3, scaled),
        VALUES,
        "position on the connection is 3 or less",
    ),
    # sequences
    "late steps": (
        when(lambda r: r.step >= 4, scaled),
        VALUES,
        "step of the sequence is 4 or more",
    ),
    "start": (
        when(lambda r: r.step == 1, both),
        VALUES,
        "step of the sequence is 1|parameter sequence_start is true",
    ),
    # order and time
    "from then on": (
        when(lambda r: r.position >= 150, scaled),
        VALUES,
        "position in the order of sending is 151 or more",
    ),
    "at first": (
        when(lambda r: r.position < 30, lambda r: 500),
        "status",
        "position in the order of sending is 30 or less",
    ),
    "for some time": (
        when(lambda r: 90 <= r.position < 130, scaled),
        VALUES,
        "position in the order of sending is 91 to 130",
    ),
    "one of four copies": (
        when(lambda r: r.position % 4 == 1, scaled),
        VALUES,
        "it is every 4th request of the model, from the 2nd",
    ),
    "repeats": (when(lambda r: r.repeats, one_more), "off by one", "the request repeats .*"),
    "concurrency": (
        when(lambda r: r.in_flight >= 4, scaled),
        VALUES,
        "requests of the model in flight is 4 or more",
    ),
    "idle": (
        when(lambda r: r.idle > 250, scaled),
        VALUES,
        r"milliseconds since the model's previous request is 3\d\d\.?\d* or more",
    ),
    # two tests
    "gRPC in batches": (
        when(lambda r: r.protocol == "gRPC" and r.rows >= 3, scaled),
        VALUES,
        "protocol is gRPC and rows is 3 or more|rows is 3 or more and protocol is gRPC",
    ),
    "long and fast": (
        when(lambda r: r.length >= 20 and r.parameters.get("mode") == "fast", scaled),
        VALUES,
        r'(size of axis 1 of x is 2\d or more| and |parameter mode is "fast"){3}',
    ),
    # from rounding to large differences, and outliers
    "drift in batches": (
        when(lambda r: r.rows >= 4, drift),
        VALUES,
        "rows is 4 or more",
    ),
    "lost token": (
        when(lambda r: r.protocol == "gRPC", last_token_lost),
        VALUES,
        "protocol is gRPC",
    ),
    "outliers": (
        when(lambda r: (r.rows >= 4) != (r.chance < 0.03), scaled),
        VALUES,
        "rows is 4 or more",
    ),
    "many outliers": (
        when(lambda r: (r.rows >= 4) != (r.chance < 0.12), scaled),
        VALUES,
        "more often where rows is 4 or more",
    ),
    "at times": (
        when(lambda r: r.protocol == "gRPC" and r.chance < 0.6, scaled),
        VALUES,
        "protocol is gRPC",
    ),
    # no condition
    "always": (one_more, "off by one", "always"),
    "half precision": (half, "rounding", "(almost )?always"),
    "rounding of larger outputs": (
        when(lambda r: r.x.size > 6, lambda r: r.answer | {"y": r.answer["y"] * np.float32(1.003)}),
        "rounding",
        "almost always",
    ),
    "random drift": (
        when(lambda r: r.chance < 0.2, drift),
        f"{VALUES}|nondeterministic in B",
        "|responses to equal requests differ: .*",
    ),
    "other order": (first_row_last, "order", "rows is 2 or more"),
    "rare": (
        when(lambda r: r.chance < 0.01, scaled),
        f"{VALUES}|nondeterministic in B",
        "|responses to equal requests differ: .*",
    ),
    "random": (
        when(lambda r: r.chance < 0.15, scaled),
        f"{VALUES}|nondeterministic in B",
        "|responses to equal requests differ: .*",
    ),
    "half of all": (
        when(lambda r: r.chance < 0.5, scaled),
        "nondeterministic in B",
        "responses to equal requests differ: .*",
    ),
}
SEVERAL = {
    "two outputs": (
        any_of(
            when(lambda r: np.isnan(r.x).any(), scaled),
            when(lambda r: r.protocol == "gRPC", one_more),
        ),
        [("off by one", "protocol is gRPC"), (VALUES, "x contains NaN")],
    ),
    "one output": (
        any_of(
            when(lambda r: r.rows >= 5, scaled),
            when(lambda r: r.parameters.get("mode") == "fast", scaled),
        ),
        [(VALUES, "rows is 5 or more"), (VALUES, 'parameter mode is "fast"')],
    ),
    "status and rounding": (
        any_of(when(lambda r: r.length > 40, lambda r: 500), half),
        [
            ("status", "size of axis 1 of x is 41 or more"),
            ("rounding", "(almost )?always, unless another difference hides it"),
        ],
    ),
}
ALL = {name: (fault, [(kind, text)]) for name, (fault, kind, text) in FAULTS.items()} | SEVERAL


def named(text):
    """Return the condition without its counts and without equal ones."""
    text = re.sub(r"^(?:only where |(more often where ))(.*): .*?$", r"\1\2", text)
    return re.sub(r" \(or .*?\)", "", text)


class Shared:
    """Traffic with right responses, and its features, which all faults have in common."""

    def __init__(self):
        self.asked = traffic(1)
        self.requests = [request(one) for one in self.asked]
        self.right = [
            Exchange(request, response(one, one.answer))
            for request, one in zip(self.requests, self.asked, strict=True)
        ]
        contents = {one.number: groups.content_of(one) for one in self.requests}
        self.content_of = lambda request, most: contents[request.number]
        spans = [(one.at, one.at + one.took) for one in self.asked]
        features = groups.features_of(self.requests, [*contents.values()], range(COUNT), spans)
        self.features_of = lambda *_: features

    def groups(self, fault):
        """Return the groups of a fault."""
        sides = {}

        def wrong(index):
            one = self.asked[index]
            answer = fault(one)
            exchange = self.right[index]
            if answer is None:
                return exchange
            return replace(exchange, response=response(one, answer))

        def differences(index, a, b):
            return tuple(compare_answers("m", a, b, Tolerances())) if a is not b else ()

        compared = []
        for index, (one, right) in enumerate(zip(self.asked, self.right, strict=True)):
            sides[index] = wrong(index)
            found = differences(index, right, sides[index])
            span = one.at, one.at + one.took
            compared.append(groups.Compared("m", right.request, found, span))

        def varies(index, again):
            one, other = (sides[at].response for at in (index, again))
            return "B" if bytes(one.body) != bytes(other.body) else ""

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(groups, "content_of", self.content_of)
            patch.setattr(groups, "features_of", self.features_of)
            return groups.group(compared, varies)


@pytest.fixture(scope="module")
def shared():
    return Shared()


@pytest.mark.parametrize("name", ALL)
def test_a_seeded_fault_is_one_group_with_its_kind_and_its_condition(shared, name):
    fault, expected = ALL[name]
    found = [(one.kind, named(one.condition)) for one in shared.groups(fault)]
    assert len(found) == len(expected)
    for kind, condition in expected:
        assert any(re.fullmatch(kind, k) and re.fullmatch(condition, c) for k, c in found), found


def test_few_random_differences_have_no_condition(shared):
    requests = conditions.Requests(shared.features_of(), np.arange(COUNT))
    random = np.random.default_rng(1)
    for _ in range(20):
        order = random.permutation(COUNT)
        differs, equal = (np.isin(np.arange(COUNT), rows) for rows in (order[:6], order[6:30]))
        assert conditions.find_conditions(requests, differs, equal) == []


def test_repetitions_of_one_request_are_no_evidence_for_its_properties():
    """One of ten contents differs: each of its many properties would separate it."""
    contents = [one for one in traffic(5) if not one.step and not one.repeats][:10]
    chosen = np.random.default_rng(1).integers(10, size=200)
    difference = Difference("values", "m", "y", "")
    compared = [
        groups.Compared("m", request(contents[index]), (difference,) if index == 3 else ())
        for index in chosen
    ]
    (group,) = groups.group(compared)
    assert (len(group.requests), group.condition) == ((chosen == 3).sum(), "")


@pytest.mark.parametrize(
    "name",
    ["late steps", "connection start", "repeats", "concurrency", "idle", "for some time", "NaN"],
)
def test_the_requests_to_reproduce_a_difference_are_sufficient(shared, name):
    fault, _ = ALL[name]
    (group,) = shared.groups(fault)
    numbers = group.reproduce
    assert group.smallest.number in numbers
    sent = as_sent([shared.asked[number] for number in numbers])
    # Positions are those of the capture.
    sent = [replace(one, position=number) for one, number in zip(sent, numbers, strict=True)]
    assert fault(sent[numbers.index(group.smallest.number)]) is not None
    assert len(numbers) < COUNT / 2
    if name == "idle":
        assert group.smallest.number - 1 in numbers
    if name == "connection start":
        assert len({shared.asked[number].connection for number in numbers}) == 1


def test_equal_servers_with_traffic_for_25_models_have_no_group():
    exchanges = [[], []]
    random = np.random.default_rng(1)
    for number, one in enumerate(one for seed in range(2) for one in traffic(seed)):
        asked = replace(request(one, f"m{number % 25}"), number=number)
        near = one.answer | {"y": one.answer["y"] * np.float32(1 + random.uniform(-1e-6, 1e-6))}
        late = replace(one, took=one.took * 2)
        for side, answer in zip(exchanges, (one.answer, near), strict=True):
            side.append(Exchange(asked, replace(response(late, answer), number=number)))
    found = compare_captures(*(capture(side) for side in exchanges), Tolerances())
    assert (found.compared, found.groups) == (2 * COUNT, ())
    assert len(found.times) == 25


def test_a_random_fault_with_slow_responses_is_found_by_equal_requests():
    """The time that B takes is an effect of the fault, and no cause."""
    asked = traffic(2)
    fault = when(lambda r: r.chance < 0.3, scaled)
    exchanges = [
        [Exchange(request(one), response(one, one.answer)) for one in asked],
        [
            Exchange(request(one), response(replace(one, took=900 * MS), fault(one) or one.answer))
            for one in asked
        ],
    ]
    (group,) = compare_captures(*(capture(side) for side in exchanges), Tolerances()).groups
    assert group.kind == "nondeterministic in B"
    assert group.condition.startswith("responses to equal requests differ: ")


def answer_in_order(asked, faulty):
    """Return exchanges with a server that counts the steps of a sequence that it received."""
    steps, found = Counter(), []
    for one in asked:
        number = one.parameters.get("sequence_id")
        steps[number] += 1
        is_wrong = faulty and number and steps[number] >= 4
        found.append(Exchange(request(one), response(one, scaled(one) if is_wrong else one.answer)))
    return found


def test_the_smallest_request_of_a_sequence_is_written_with_the_earlier_ones(tmp_path, capsys):
    asked = traffic(3)[:120]
    paths = [tmp_path / "a.trc", tmp_path / "b.trc"]
    for path, faulty in zip(paths, (False, True), strict=True):
        pairs = ((one.request, one.response) for one in answer_in_order(asked, faulty))
        write_records(path, *itertools.chain(*pairs), Closing(0, "stopped", {}))
    assert main(["compare", *map(str, paths), f"--smallest={tmp_path / 'small'}"]) == 1
    small = read_capture(tmp_path / "small" / "group-1.trc").exchanges
    numbers = [one.request.number for one in small]
    assert [asked[number].step for number in numbers] == [1, 2, 3, 4]
    assert f"request {numbers[-1]} and 3 that it depends on" in capsys.readouterr().err
    # Both servers are asked again.
    again = [answer_in_order([asked[n] for n in numbers], faulty) for faulty in (False, True)]
    found = compare_captures(*(capture(side) for side in again), Tolerances())
    assert [one.requests for one in found.groups] == [(numbers[-1],)]
