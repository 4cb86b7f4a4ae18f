"""The changes that each type of request makes to the statistics of a model.

A script is a few requests sent one after the other, and the counters that have moved once they are
answered; every other counter stands still. The probes named here are asked by nobody else.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from contract.casebook import binary, get, infer, infer_binary, tensor
from contract.wire import exchange
from support.waiting import eventually


@dataclass(frozen=True)
class Script:
    """Requests, and what they move in the statistics of one model, and `beside` in others.

    The next script is played when all of it is counted: it may be about one of those.
    """

    name: str
    model: str
    requests: tuple[bytes, ...]
    moves: dict[str, int]
    beside: dict[str, dict[str, int]] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name


def row(*values: float) -> bytes:
    """Send these numbers as one batch."""
    return infer("counted", tensor("X", "FP32", [len(values), 1], list(values)))


def fault(what: str, model: str = "counted_faults") -> bytes:
    """Ask a model to do something wrong."""
    return infer(model, tensor("what", "BYTES", [1], [what]))


def chained(*values: float) -> bytes:
    """Send these numbers through the ensemble as one batch."""
    return infer("counted_chain", tensor("IN", "FP32", [len(values), 1], list(values)))


def succeeded(requests: int, *, batch: int = 1) -> dict[str, int]:
    """The counters of requests that went well, each executed alone."""
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


def mixed_sizes() -> dict[str, int]:
    """The counters of two single rows and a batch of two."""
    return succeeded(3) | {"inference_count": 4, "batches of 1": 2, "batches of 2": 1}


#: The counters of an execution that raised.
BROKE = {"fail": 1, "execution_count": 1, "batches of 1": 1}
TRUNCATED_TEXT = infer_binary("counted_faults", b"\x09\0\0\0abc", binary("what", "BYTES", [1], 7))
TWO_INPUTS = infer("counted", *(tensor(name, "FP32", [1, 1], [1]) for name in "XZ"))

SCRIPTS = [
    Script("one request", "counted", (row(1),), succeeded(1)),
    Script("three requests", "counted", (row(1), row(2), row(3)), succeeded(3)),
    Script("a batch of five", "counted", (row(1, 2, 3, 4, 5),), succeeded(1, batch=5)),
    # A good request behind each refused one shows that the refusal had not moved anything.
    Script("refused: batch too large", "counted", (row(*range(9)), row(1)), succeeded(1)),
    Script("refused: too many inputs", "counted", (TWO_INPUTS, row(1)), succeeded(1)),
    Script("refused: not JSON", "counted", (infer("counted")[:-1] + b"!", row(1)), succeeded(1)),
    Script(
        "execute raises",
        "counted_faults",
        (fault("raises ValueError"),),
        BROKE,
    ),
    Script(
        "execute returns too few responses",
        "counted_faults",
        (fault("returns too few"),),
        BROKE,
    ),
    Script(
        "an error response is a success",
        "counted_faults",
        (fault("error NOT_FOUND"),),
        succeeded(1),
    ),
    Script(
        "a response without outputs", "counted_faults", (fault("answer nothing"),), succeeded(1)
    ),
    Script(
        "a response through the sender",
        "counted_faults",
        (fault("sends and returns none"),),
        succeeded(1),
    ),
    Script("an input the backend refuses", "counted_faults", (TRUNCATED_TEXT,), {"fail": 1}),
    Script(
        "ensemble",
        "counted_chain",
        (chained(1, 2), chained(3, 4)),
        succeeded(2, batch=2),
        {"counted_step": succeeded(2, batch=2)},
    ),
    Script(
        "step of an ensemble",
        "counted_step",
        (chained(1, 2, 3),),
        succeeded(1, batch=3),
        {"counted_chain": succeeded(1, batch=3)},
    ),
    Script(
        "refused by the ensemble",
        "counted_chain",
        (chained(*range(9)), chained(1)),
        succeeded(1),
        {"counted_step": succeeded(1)},
    ),
    Script(
        "an ensemble's failure counts twice",
        "counted_faulty_chain",
        (fault("raises ValueError", "counted_faulty_chain"),),
        {"fail": 2},
        {"counted_faults": BROKE},
    ),
    Script(
        "each ensemble around it counts twice, too",
        "counted_outer_chain",
        (fault("raises ValueError", "counted_outer_chain"),),
        {"fail": 2},
        {"counted_faulty_chain": {"fail": 2}, "counted_faults": BROKE},
    ),
    Script(
        "a step's error response counts twice",
        "counted_faulty_chain",
        (fault("error NOT_FOUND", "counted_faulty_chain"),),
        {"fail": 2},
        {"counted_faults": succeeded(1)},
    ),
    Script(
        "a step that leaves an output out",
        "counted_faulty_chain",
        (fault("answer nothing", "counted_faulty_chain"),),
        succeeded(1),
        {"counted_faults": succeeded(1)},
    ),
    Script("batches of two sizes", "counted", (row(1), row(1, 2), row(3)), mixed_sizes()),
    Script(
        "the step that fails counts once",
        "counted_faults",
        (fault("raises ValueError", "counted_faulty_chain"),),
        BROKE,
        {"counted_faulty_chain": {"fail": 2}},
    ),
]


def play(address: str, script: Script) -> dict[str, int]:
    """Send a script's requests, then give the counters that moved.

    A server may answer before it counts, so this asks again until the expected has happened, or
    until there was time enough for it.
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
    """The counters of a model that are others than `before`, and by how much."""
    after = counters(address, model)
    return {key: n - before.get(key, 0) for key, n in after.items() if n != before.get(key, 0)}


def counters(address: str, model: str) -> dict[str, int]:
    """Read a model's counters under short names; durations and times are left out."""
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
