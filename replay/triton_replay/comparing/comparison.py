"""Comparison of two captures of the same requests: groups of differences, and latencies."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import comb
from typing import Final

from triton_replay.capture.files import Capture, Exchange
from triton_replay.capture.records import Request
from triton_replay.comparing.differences import (
    Difference,
    compare_answers,
    failure_of,
    model_of,
    outputs_of,
)
from triton_replay.comparing.latencies import Latencies, latencies
from triton_replay.comparing.tolerances import Tolerances
from triton_replay.errors import ReplayError
from triton_replay.wire.answers import read_inputs
from triton_replay.wire.bodies import INFERENCE, NotUnderstood
from triton_replay.wire.grpc_messages import inputs_of_call, is_inference

_NAMES_SHOWN: Final = 20


@dataclass(frozen=True)
class ModelTimes:
    """Failures of one model, and the latencies of requests that succeeded in both captures.

    Requests that fail in one capture are left out on both sides: a quick failure is no low latency,
    and without a slow request the others look quicker.
    """

    model: str
    requests: int
    """Number of compared requests."""
    failures_a: Mapping[str, int]
    """Number of failed requests in A, by reason."""
    failures_b: Mapping[str, int]
    a: tuple[int, ...]
    """Latencies in nanoseconds, in the order of `b`."""
    b: tuple[int, ...]
    summary_a: Latencies
    summary_b: Latencies

    @property
    def excluded(self) -> int:
        """Number of compared requests without latency, because A or B failed."""
        return self.requests - len(self.a)


@dataclass(frozen=True)
class Comparison:
    """The result of `compare_captures`."""

    a: Capture
    b: Capture
    compared: int
    differing: int
    """Requests whose responses differ."""
    only_a: int
    """Requests that only A has, because a replay skipped them or was stopped early."""
    only_b: int
    groups: tuple[Group, ...]
    times: tuple[ModelTimes, ...]


def compare_captures(
    a: Capture, b: Capture, tolerances: Tolerances, ignored: Collection[str] = ()
) -> Comparison:
    """Compare the responses to requests with the same number.

    Args:
        a: The first capture.
        b: The second capture: a replay of A, or both are replays of a third capture.
        tolerances: Allowed differences of tensors.
        ignored: Response fields that are not compared, as in `compare_answers`.

    Returns:
        Groups of differences, and latencies by model.

    Raises:
        ReplayError: The captures contain different requests, or no output of a named tolerance.
    """
    first = {exchange.request.number: exchange for exchange in a.exchanges}
    second = {exchange.request.number: exchange for exchange in b.exchanges}
    common = [number for number in first if number in second]
    same = [n for n in common if _same_request(first[n], second[n])]
    if not same or len(same) < len(common):
        raise ReplayError(
            f"{a.name} and {b.name}: {len(common) - len(same)} of {len(common)} requests with the "
            "same number differ; expected one to be a replay of the other, or both of a third"
        )
    models = {number: model_of(first[number].request) for number in same}
    answered = ((models[n], side[n]) for side in (first, second) for n in same)
    outputs = ((model, name) for model, exchange in answered for name in outputs_of(exchange))
    check_names(tolerances, outputs)
    concurrency = in_flight([_span(models[number], second[number]) for number in same])
    compared = []
    for number, concurrent in zip(same, concurrency, strict=True):
        one, other, model = first[number], second[number], models[number]
        found = compare_answers(model, one, other, tolerances, ignored)
        features = features_of(one.request, concurrent)
        compared.append(Compared(model, one.request, features, tuple(found)))
    return Comparison(
        a=a,
        b=b,
        compared=len(same),
        differing=sum(bool(one.differences) for one in compared),
        only_a=len(first) - len(common),
        only_b=len(second) - len(common),
        groups=tuple(group(compared)),
        times=tuple(_times(models, first, second)),
    )


def check_names(tolerances: Tolerances, outputs: Iterable[tuple[str, str]]) -> None:
    """Raise ReplayError if a tolerance names an output that is not in `outputs`.

    Args:
        tolerances: The tolerances.
        outputs: Model and name of outputs, repeated or not; read as far as necessary.
    """
    unknown, known = set(tolerances.named), set[str]()
    if not unknown:
        return
    for model, output in outputs:
        known.add(f"{model}/{output}")
        unknown -= {output, f"{model}/{output}"}
        if not unknown:
            return
    found = ", ".join(sorted(unknown))
    expected = ", ".join(sorted(known)[:_NAMES_SHOWN]) or "none, because no response has outputs"
    raise ReplayError(f"--tolerance: found {found}; expected outputs of the responses: {expected}")


def _same_request(a: Exchange, b: Exchange) -> bool:
    one, other = a.request, b.request
    return (one.method, one.target) == (other.method, other.target) and (
        one.redacted or other.redacted or bytes(one.body) == bytes(other.body)
    )


def _span(model: str, exchange: Exchange) -> tuple[str, int, int]:
    end = exchange.response.end if exchange.response else exchange.request.end
    return model, exchange.request.end, end


def _times(
    models: Mapping[int, str], a: Mapping[int, Exchange], b: Mapping[int, Exchange]
) -> list[ModelTimes]:
    numbers: defaultdict[str, list[int]] = defaultdict(list)
    for number, model in models.items():
        numbers[model].append(number)
    found = []
    for model, of_model in numbers.items():
        failures = [{n: failure_of(side[n]) for n in of_model} for side in (a, b)]
        paired = [n for n in of_model if not any(side[n] for side in failures)]
        times_a, summary_a = latencies([a[n] for n in paired])
        times_b, summary_b = latencies([b[n] for n in paired])
        counts_a, counts_b = (Counter(filter(None, side.values())) for side in failures)
        found.append(
            ModelTimes(
                model, len(of_model), counts_a, counts_b, times_a, times_b, summary_a, summary_b
            )
        )
    return sorted(found, key=lambda one: -one.requests)


# -- groups: for each kind of difference, model and output, each property of a request (rows, sizes,
# lengths, requests in flight) is tested as a condition "at least n" and "at most n". A condition is
# reported if it holds for so few other requests that chance is an unlikely explanation.

CHANCE: Final = 0.01
"""A condition is reported if its probability by chance, over all properties, is below this."""
ROWS: Final = "rows"
IN_FLIGHT: Final = "requests of the model in flight"

Features = Mapping[str, int]


@dataclass(frozen=True)
class Compared:
    """A request in both captures, with its properties and differences."""

    model: str
    request: Request
    features: Features
    differences: tuple[Difference, ...]


@dataclass(frozen=True)
class Group:
    """Requests with the same kind of difference."""

    kind: str
    model: str
    output: str
    condition: str
    """Condition under which the difference occurs, or ""."""
    requests: tuple[int, ...]
    """Numbers of the requests."""
    of: int
    """Number of compared requests of this model."""
    smallest: Request
    example: str
    """The difference of the smallest request."""
    largest: float


def features_of(request: Request, in_flight: int) -> Features:
    """Return the properties of an inference request that a difference may depend on.

    Args:
        request: The request.
        in_flight: Concurrent requests of its model, itself included.

    Returns:
        Values by property; empty for other requests.
    """
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
    """Return for each (model, start, end) the number of overlapping ones of its model.

    Each one counts itself.
    """
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
    """Return all groups, the largest first."""
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
    """Return the condition that holds for all differing requests and the fewest others."""
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
            # Probability that a random selection lies entirely among those that meet it.
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
