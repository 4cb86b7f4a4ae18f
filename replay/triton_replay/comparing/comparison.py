"""Comparison of two captures of the same requests: groups of differences, and latencies."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from triton_replay.capture.reader import Capture, Exchange
from triton_replay.comparing.differences import compare_answers, model_of
from triton_replay.comparing.grouping import Compared, Group, features_of, group, in_flight
from triton_replay.comparing.latencies import Latencies, latencies
from triton_replay.comparing.tolerances import Tolerances
from triton_replay.errors import ReplayError


@dataclass(frozen=True)
class ModelTimes:
    """Latencies of one model in both captures, in nanoseconds, and their summaries."""

    model: str
    a: tuple[int, ...]
    b: tuple[int, ...]
    summary_a: Latencies
    summary_b: Latencies


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


def compare_captures(a: Capture, b: Capture, tolerances: Tolerances) -> Comparison:
    """Compare the responses to requests with the same number.

    Args:
        a: The first capture.
        b: The second capture: a replay of A, or both are replays of a third capture.
        tolerances: Allowed differences of tensors.

    Returns:
        Groups of differences, and latencies by model.

    Raises:
        ReplayError: The captures contain different requests.
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
    concurrency = in_flight([_span(models[number], second[number]) for number in same])
    compared = []
    for number, concurrent in zip(same, concurrency, strict=True):
        one, other, model = first[number], second[number], models[number]
        found = compare_answers(model, one, other, tolerances)
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
        both = []
        for captured in (a, b):
            exchanges = [captured[number] for number in of_model]
            spans = [
                (exchange.request.at, exchange.response.end)
                for exchange in exchanges
                if exchange.response is not None and exchange.response.ended == "complete"
            ]
            times = tuple(max(end - at, 0) for at, end in spans)
            last = max((end for _, end in spans), default=0)
            span = last - min((at for at, _ in spans), default=0)
            both.append((times, latencies(times, span)))
        (times_a, summary_a), (times_b, summary_b) = both
        found.append(ModelTimes(model, times_a, times_b, summary_a, summary_b))
    return sorted(found, key=lambda one: -len(one.a))
