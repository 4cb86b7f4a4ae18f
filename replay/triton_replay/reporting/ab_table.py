"""The result of `ab` as text and JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from triton_replay.addresses import Address
from triton_replay.comparing.paired import MIN_REQUESTS
from triton_replay.comparing.side_by_side import ModelVerdict, differing, more_errors
from triton_replay.reporting.table import (
    MODELS_SHOWN,
    failure_lines,
    group_document,
    group_text,
)


def ab_lines(servers: Mapping[str, Address], verdict: Sequence[ModelVerdict]) -> list[str]:
    """Return the lines of the report: failures, differences, latencies."""
    found = [f"{name:2} {server}" for name, server in servers.items()]
    requests = sum(one.requests for one in verdict)
    found += ["", f"{requests} requests, the answers of B to {differing(verdict)} differ"]
    found += failure_lines((one.model, one.failures["A"], one.failures["B"]) for one in verdict)
    for one in verdict:
        for title, groups in (("differs", one.groups), ("noise, A differs from itself", one.noise)):
            found += [f"{title}: {group_text(each)}" for each in groups]
    second = "A2" if "A2" in servers else "A"
    found += ["", "latency in ms; B/A with its 95 % interval", ""]
    found.append(f"{'':24} {'A':>10} {'B':>10}  {'B/A':22} {f'{second}/A':>7}")
    for one in verdict:
        found += _latency_lines(one) if one.effects else []
    few = [f"{one.model[:40]}, {one.timed} of {one.requests}" for one in verdict if not one.effects]
    if few:
        found.append(f"no verdict: fewer than {MIN_REQUESTS} requests with a latency on all sides")
        found += [f"  {text}" for text in few[:MODELS_SHOWN]]
        found += [f"  ... and {len(few) - MODELS_SHOWN} more"] if len(few) > MODELS_SHOWN else []
    if second == "A":
        found += ["", "Without --a2, two processes of one server may differ as much."]
    return found


def _latency_lines(one: ModelVerdict) -> Iterator[str]:
    yield f"{one.model[:40]}, {one.timed} of {one.requests} requests"
    for effect in one.effects:
        interval = f"{effect.ratio:.2f} [{effect.low:.2f}..{effect.high:.2f}]"
        yield (
            f"  {effect.statistic:22} {effect.a / 1e6:>10.2f} {effect.b / 1e6:>10.2f}  "
            f"{interval:22} {effect.noise:>7.2f}  {effect.verdict}"
        ).rstrip()


def ab_document(servers: Mapping[str, Address], verdict: Sequence[ModelVerdict]) -> dict[str, Any]:
    """Return the result as a JSON document. Times are in nanoseconds."""
    return {
        "servers": {name: str(server) for name, server in servers.items()},
        "differing": differing(verdict),
        "more_errors": more_errors(verdict),
        "models": [
            {
                "model": one.model,
                "requests": one.requests,
                "timed": one.timed,
                "failures": one.failures,
                "differences": [group_document(each) for each in one.groups],
                "noise": [group_document(each) for each in one.noise],
                "latencies": [asdict(effect) for effect in one.effects],
            }
            for one in verdict
        ],
    }
