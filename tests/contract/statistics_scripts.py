"""Requests and the counters that they change in the statistics of a model."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from contract.casebook import get
from contract.wire import exchange
from support.waiting import eventually


@dataclass(frozen=True)
class Script:
    """Requests, and the changed counters of one model, and of other models (`beside`).

    The next script waits for all these changes, because it may change the same counters.
    """

    name: str
    model: str
    requests: tuple[bytes, ...]
    moves: dict[str, int]
    beside: dict[str, dict[str, int]] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name


def succeeded(requests: int, *, batch: int = 1) -> dict[str, int]:
    """Return the counters of successful requests, each executed alone."""
    return {
        "inference_count": requests * batch,
        "execution_count": requests,
        "success": requests,
        "queue": requests,
        "compute_input": requests,
        "compute_infer": requests,
        "compute_output": requests,
        f"batches of {batch}": requests,
    }


def play(address: str, script: Script) -> dict[str, int]:
    """Send a script's requests, and return the changes of counters.

    A server may answer before it counts, so the counters are read until they have the expected
    values, or until a time limit.
    """
    wanted = {script.model: script.moves} | script.beside
    before = {model: counters(address, model) for model in wanted}
    for request in script.requests:
        exchange(address, request)

    def moved() -> dict[str, dict[str, int]]:
        return {model: moved_since(counts, address, model) for model, counts in before.items()}

    found = eventually(moved, wanted)
    assert found == wanted, f"{found}, not {wanted}"
    return found[script.model]


def moved_since(before: dict[str, int], address: str, model: str) -> dict[str, int]:
    """Return the changes of a model's counters since `before`."""
    after = counters(address, model)
    return {key: n - before.get(key, 0) for key, n in after.items() if n != before.get(key, 0)}


def counters(address: str, model: str) -> dict[str, int]:
    """Read a model's counters by short names, without durations and times."""
    reply = exchange(address, get(f"/v2/models/{model}/stats")).replies[0]
    (found,) = json.loads(reply.body)["model_stats"]
    counts = {name: found[name] for name in ("inference_count", "execution_count")}
    counts |= {name: item["count"] for name, item in found["inference_stats"].items()}
    for batch in found["batch_stats"]:
        size = batch.pop("batch_size")
        # Each part of an execution is counted; all of them must agree.
        (executions,) = {part["count"] for part in batch.values()}
        counts[f"batches of {size}"] = executions
    return counts
