"""Groups of differences by cause: what do all requests have in common whose answers differ.

For each kind of difference, model and output, each property of a request (rows, sizes, lengths,
requests in flight) is tried as a condition `at least n`. It is named if so few requests that do not
differ meet it as well that this can hardly be chance.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb
from typing import Final

from triton_replay.capture.records import Request
from triton_replay.comparing.differences import Difference
from triton_replay.wire.answers import read_inputs
from triton_replay.wire.bodies import INFERENCE, NotUnderstood
from triton_replay.wire.grpc_messages import is_inference
from triton_replay.wire.grpc_tensors import inputs_of_call

CHANCE: Final = 0.01
"""Above this a condition may hold by chance, for any of the properties, and is not named."""
ROWS: Final = "rows"
IN_FLIGHT: Final = "requests of the model in flight"

Features = Mapping[str, int]


@dataclass(frozen=True)
class Compared:
    """One request that both captures have."""

    model: str
    request: Request
    features: Features
    differences: tuple[Difference, ...]


@dataclass(frozen=True)
class Group:
    """Requests that differ in the same way."""

    kind: str
    model: str
    output: str
    condition: str
    """When; empty where no property tells."""
    requests: tuple[int, ...]
    """Their numbers."""
    of: int
    """Requests of this model that were compared."""
    smallest: Request
    example: str
    """The difference of the smallest request."""
    largest: float


def features_of(request: Request, in_flight: int) -> Features:
    """The properties of a request that a difference may depend on."""
    found: dict[str, int] = {}
    try:
        if request.protocol == "grpc" and is_inference(request.target):
            inputs = inputs_of_call(request.body)
        elif INFERENCE.match(request.target.partition("?")[0]):
            inputs = read_inputs(request.headers, request.body)
        else:
            return {}
    except NotUnderstood:
        return {}
    for name, tensor in inputs.items():
        if tensor.shape:
            found.setdefault(ROWS, tensor.shape[0])
        for axis, size in enumerate(tensor.shape[1:], 1):
            found[f"size of axis {axis} of {name}"] = size
        if tensor.datatype == "BYTES" and tensor.values.size:
            found[f"bytes of an element of {name}"] = max(map(len, tensor.values.flat))
    return found | {IN_FLIGHT: in_flight}


def in_flight(spans: Sequence[tuple[str, int, int]]) -> list[int]:
    """For each (model, first, last time) how many of its model overlap it, itself included."""
    events = defaultdict(list)
    for index, (model, first, last) in enumerate(spans):
        events[model].append((first, 0, index))
        events[model].append((max(first, last), 1, index))
    counts = [0] * len(spans)
    for of_model in events.values():
        open_now: set[int] = set()
        for _, ends, index in sorted(of_model):
            if ends:
                open_now.discard(index)
            else:
                open_now.add(index)
                for other in open_now:
                    counts[other] += 1 if other != index else len(open_now)
    return counts


def group(compared: Sequence[Compared]) -> list[Group]:
    """All groups, those of most requests first."""
    members: defaultdict[tuple[str, str, str], dict[int, Difference]] = defaultdict(dict)
    for index, one in enumerate(compared):
        for difference in one.differences:
            key = difference.model, difference.kind, difference.output
            members[key].setdefault(index, difference)
    by_model: defaultdict[str, list[int]] = defaultdict(list)
    for index, one in enumerate(compared):
        by_model[one.model].append(index)
    groups = []
    for (model, kind, output), found in members.items():
        all_of_model = [compared[index] for index in by_model[model]]
        differing = [compared[index] for index in found]
        smallest = min(found, key=lambda index: compared[index].request.body_size)
        groups.append(
            Group(
                kind=kind,
                model=model,
                output=output,
                condition=_condition(differing, all_of_model),
                requests=tuple(compared[index].request.number for index in found),
                of=len(all_of_model),
                smallest=compared[smallest].request,
                example=found[smallest].detail,
                largest=max(difference.size for difference in found.values()),
            )
        )
    return sorted(groups, key=lambda one: (-len(one.requests), one.model, one.kind, one.output))


def _condition(differing: Sequence[Compared], all_of_model: Sequence[Compared]) -> str:
    """What all that differ have, and few others."""
    if len(differing) == len(all_of_model):
        return "always"
    names = [
        name for name in differing[0].features if all(name in one.features for one in differing)
    ]
    best = (len(all_of_model), "")
    for name in names:
        values = [one.features[name] for one in differing]
        others = [one.features.get(name, 0) for one in all_of_model]
        for least, text in ((True, _at_least), (False, _at_most)):
            bound = min(values) if least else max(values)
            meeting = sum(value >= bound if least else value <= bound for value in others)
            # How probable are so many among those that meet it, if it were no cause?
            chance = comb(meeting, len(values)) / comb(len(others), len(values))
            if 2 * len(names) * chance < CHANCE and meeting < best[0]:
                best = meeting, f"{text(name, bound)}: {len(values)} of {meeting}"
    return best[1]


def _at_least(name: str, bound: int) -> str:
    if name == ROWS and bound > 1:
        return f"only when batched, {bound} rows or more"
    if name == IN_FLIGHT:
        return f"only with {bound} or more {name}"
    return f"only where {name} is {bound} or more"


def _at_most(name: str, bound: int) -> str:
    return f"only where {name} is {bound} or less"
