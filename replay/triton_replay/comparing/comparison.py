"""Comparison of two captures of the same requests: groups of differences, and latencies."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from triton_replay.capture.files import Capture, Exchange
from triton_replay.capture.renaming import Names
from triton_replay.comparing.differences import (
    Difference,
    compare_answers,
    failure_of,
    model_of,
    outputs_of,
)
from triton_replay.comparing.groups import Compared, Group, group
from triton_replay.comparing.latencies import Latencies, latencies
from triton_replay.comparing.noise import Noise, measure_noise
from triton_replay.comparing.tolerances import Tolerances
from triton_replay.errors import ReplayError

_NAMES_SHOWN: Final = 20
_REPLAY: Final = "expected one to be a replay of the other, or both to be replays of a third"


@dataclass(frozen=True)
class ModelTimes:
    """Failures of one model, and the latencies of requests that succeeded in both captures.

    Requests that fail in one capture are left out on both sides: a quick failure is not a low
    latency, and a capture without a slow request would look quicker.
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
    noise: Noise
    """The learned differences, which are in no group."""


def compare_captures(
    a: Capture, b: Capture, tolerances: Tolerances, again: Capture | None = None
) -> Comparison:
    """Compare the responses to requests with the same number.

    Args:
        a: The first capture.
        b: The second capture: a replay of A, or both are replays of a third capture.
        tolerances: Allowed differences.
        again: Further responses of A's server. What differs between them and A is not reported.

    Returns:
        Groups of differences, and latencies by model.

    Raises:
        ReplayError: The captures contain different requests, or no output that a tolerance names.
    """
    tolerances.names.check(a.exchanges)
    first, second, same = _common(a, b, tolerances.names)
    models = {number: model_of(first[number].request) for number in same}
    # B may have other output names.
    sides = (first,) if tolerances.names.outputs else (first, second)
    answered = ((models[n], side[n]) for side in sides for n in same)
    outputs = ((model, name) for model, exchange in answered for name in outputs_of(exchange))
    check_names(tolerances, outputs)
    same.sort(key=lambda number: (first[number].request.at, number))
    plain = replace(tolerances, names=Names())

    def varies(index: int, again: int) -> str:
        one, other = same[index], same[again]
        return " and ".join(
            name
            for name, side in (("A", first), ("B", second))
            if compare_answers(models[one], side[one], side[other], plain)
        )

    noise = measure_noise(_self_differences(a, again, plain) if again is not None else ())
    found = noise.beyond(
        [compare_answers(models[n], first[n], second[n], tolerances) for n in same], learn=True
    )
    compared = [
        Compared(models[number], first[number].request, differences, _span(first[number]))
        for number, differences in zip(same, found, strict=True)
    ]
    return Comparison(
        a=a,
        b=b,
        compared=len(same),
        differing=sum(bool(one.differences) for one in compared),
        only_a=len(first) - len(same),
        only_b=len(second) - len(same),
        groups=tuple(group(compared, varies)),
        times=tuple(_times(models, first, second)),
        noise=noise,
    )


def _common(
    a: Capture, b: Capture, names: Names
) -> tuple[dict[int, Exchange], dict[int, Exchange], list[int]]:
    """Return the exchanges of A and of B by number, and the common numbers. Raise ReplayError."""
    first = {exchange.request.number: exchange for exchange in a.exchanges}
    second = {exchange.request.number: exchange for exchange in b.exchanges}
    common = [number for number in first if number in second]
    same = [n for n in common if _same_request(names.renamed(first[n]), second[n])]
    if not common:
        raise ReplayError(f"{a.name} and {b.name}: no common requests, {_REPLAY}")
    if len(same) < len(common):
        mapped = " after mapping of names" if names else ""
        raise ReplayError(
            f"{a.name} and {b.name}: {len(common) - len(same)} of {len(common)} requests with the "
            f"same number differ{mapped}; {_REPLAY}"
        )
    return first, second, same


def _self_differences(
    a: Capture, again: Capture, tolerances: Tolerances
) -> Iterator[list[Difference]]:
    first, second, same = _common(a, again, Names())
    for number in same:
        one = first[number]
        yield compare_answers(model_of(one.request), one, second[number], tolerances)


def check_names(tolerances: Tolerances, outputs: Iterable[tuple[str, str]]) -> None:
    """Raise ReplayError if an option names an output that is not in `outputs`.

    Args:
        tolerances: The tolerances.
        outputs: Pairs of a model and an output, possibly repeated; read as far as necessary.
    """
    named = {"--tolerance": tolerances.named, "--map-output": tolerances.names.outputs}
    unknown = {option: set(names) for option, names in named.items()}
    known = set[str]()
    for model, output in outputs:
        if not any(unknown.values()):
            return
        known.add(f"{model}/{output}")
        for names in unknown.values():
            names -= {output, f"{model}/{output}"}
    expected = ", ".join(sorted(known)[:_NAMES_SHOWN]) or "none, because no response has outputs"
    for option, names in unknown.items():
        if names:
            found = ", ".join(sorted(names))
            text = f"{option}: found {found}; expected outputs of the responses: {expected}"
            raise ReplayError(text)


def _same_request(a: Exchange, b: Exchange) -> bool:
    one, other = a.request, b.request
    return (one.method, one.target) == (other.method, other.target) and (
        one.redacted or other.redacted or bytes(one.body) == bytes(other.body)
    )


def _span(exchange: Exchange) -> tuple[int, int]:
    end = exchange.response.end if exchange.response else exchange.request.end
    return exchange.request.end, end


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
