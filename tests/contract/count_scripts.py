"""Counters that scripts change in the statistics of all models, except for ensembles' failures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from contract.count_play import Counts, Play, why_not_ready

Moves = Counter[str]
Act = Callable[[Play], None]


@dataclass(frozen=True)
class Script:
    """Actions, and the counters that they change, by model. All other counters stay unchanged.

    If the reference server changes other counters, `ours` has these and `reason` says why. `unsafe`
    is the reason why a script is not played on the real server.
    """

    name: str
    act: Act
    moves: dict[str, Moves]
    reason: str = ""
    ours: dict[str, Moves] = field(default_factory=dict)
    unsafe: str = ""

    def __str__(self) -> str:
        return self.name

    def expected(self, server: str) -> Counts:
        """Return the counters that change on `triton` or on `reference`."""
        moves = self.ours if self.reason and server == "reference" else self.moves
        return {model: dict(counts) for model, counts in moves.items() if counts}


# ----------------------------------------------------------------------------------- counters


def executed(size: int = 1, executions: int = 1) -> Moves:
    """Return the counters of executions of batches of this size."""
    names = ("execution_count", "exec_count", f"batches of {size}")
    return Counter(dict.fromkeys(names, executions))


def answered(requests: int = 1, rows: int = 1) -> Moves:
    """Return the counters of answered requests with this number of rows, in any batches."""
    parts = ("success", "queue", "compute_input", "compute_infer", "compute_output")
    inferred = dict.fromkeys(("inference_count", "count"), requests * rows)
    return Counter(dict.fromkeys((*parts, "request_success"), requests) | inferred)


def ran(requests: int = 1, rows: int = 1) -> Moves:
    """Return the counters of requests that were executed one by one."""
    return answered(requests, rows) + executed(rows, requests)


def failed(reason: str, requests: int = 1) -> Moves:
    return Counter({"fail": requests, f"request_failure {reason}": requests})


def broke(size: int = 1, requests: int = 1) -> Moves:
    """Return the counters of an execution that failed as a whole."""
    return failed("BACKEND", requests) + executed(size)


def hit(requests: int = 1) -> Moves:
    """Return the counters of requests answered from the response cache."""
    names = ("success", "queue", "cache_hit", "request_success")
    return Counter(dict.fromkeys(names, requests))


MISS = Counter(cache_miss=1)

# ------------------------------------------------------------------------------- what is said

SAYS = "answer = say('x')"
RAISES = "raise ValueError('no')"
ERROR = "answer = fail('no')"
ENDS = "sender.send(flags=FINAL)"
SENDS = "sender.send(say('x'), flags=FINAL)"
FAILS_LAST = "sender.send(fail('no'), flags=FINAL)"


def source(*scripts: str | None, end: str = ENDS) -> str:
    """Return a script that sends these texts one by one (None: an error), and ends."""
    lines = [f"sender.send({'fail(0)' if s is None else f'say({s!r})'})\n" for s in scripts]
    return "".join(lines).replace("fail(0)", "fail('no')") + end


def calls(model: str, script: str, version: int = -1) -> str:
    """Return a script that calls another model, and answers with its response."""
    return f"""
given = pb_utils.Tensor('script', np.array([{script!r}.encode()], dtype=object))
asked = pb_utils.InferenceRequest(model_name={model!r}, model_version={version},
    inputs=[given], requested_output_names=['said'])
response = asked.exec()
answer = fail(response.error().message()) if response.has_error() else say('x')
"""


def calls_many(script: str) -> str:
    """Return a script that calls a decoupled model."""
    return calls("many", script).split("response =")[0] + (
        "answer = say(str([one.has_error() for one in asked.exec(decoupled=True)]))"
    )


# --------------------------------------------------------------------------------- what is done


def ask(model: str, *scripts: str, **settings: Any) -> Act:
    def act(play: Play) -> None:
        for script in scripts:
            play.ask(model, script, **settings)

    return act


def stream(model: str, script: str, **settings: Any) -> Act:
    """Send a request on a stream."""

    def act(play: Play) -> None:
        play.stream(model, script, "s", **settings)
        play.answered("s")

    return act


def sizes(play: Play) -> None:
    for rows in (1, 2, 3, 4, 2):
        play.ask("rows", SAYS, rows=rows)


def over_http(play: Play) -> None:
    assert play.http("/v2/models/plain/infer", document("BYTES", SAYS)) == 200
    assert play.http("/v2/models/plain/generate", {"script": SAYS}) == 200
    assert play.http("/v2/models/many/generate_stream", {"script": SENDS}) == 200


def document(datatype: str, *data: object) -> dict[str, object]:
    """Return the JSON of a request."""
    given = {"name": "script", "datatype": datatype, "shape": [len(data)], "data": data}
    return {"inputs": [given]}


def refusals(play: Play) -> None:
    assert play.ask("rows", SAYS, rows=5)
    assert play.ask("plain", SAYS, model_version="7")
    assert play.ask("plain", SAYS, rows=1)
    assert play.ask("many", SAYS)
    assert play.ask("over_many", SAYS)
    assert play.ask("chain", SAYS, rows=1)
    assert play.ask("over_rows", SAYS, rows=5)
    for body in (document("BYTES", "", ""), document("INT32", 1), "{", {"inputs": []}):
        assert play.http("/v2/models/plain/infer", body) >= 400
    assert play.http("/v2/models/many/infer", document("BYTES", SENDS)) >= 400
    assert play.http("/v2/models/nobody/infer", document("BYTES", SAYS)) == 404


def cancelled(*lines: str) -> Act:
    """Cancel a request while its script runs, which then continues with these lines."""

    def act(play: Play) -> None:
        play.send("plain", play.gate("c") + "\n".join(lines), "c")
        play.begun("c")
        play.cancel("c")
        play.go("c")

    return act


OBEYS = (
    "while not request.is_cancelled(): time.sleep(.005)",
    "answer = fail('cancelled', pb_utils.TritonError.CANCELLED)",
)


def cancelled_stream(play: Play) -> None:
    play.stream("many", play.gate("c") + ENDS, "c")
    play.begun("c")
    play.hang_up("c")
    play.go("c")


def waiting(model: str, *scripts: tuple[str, int], then: Act | None = None) -> Act:
    """Queue scripts with these numbers of rows after a request; run `then` before that ends."""

    def act(play: Play) -> None:
        play.send(model, play.gate("h") + SAYS, "h", rows=1)
        play.begun("h")
        for index, (script, rows) in enumerate(scripts):
            play.send(model, script, f"w{index}", rows=rows)
            play.waits(model, index + 1)
        if then is not None:
            then(play)
        play.go("h")
        play.answered()

    return act


def cancelled_without_a_batcher(play: Play) -> None:
    play.send("plain", play.gate("h") + SAYS, "h")
    play.begun("h")
    play.send("plain", SAYS, "w")
    play.waits("plain", 1)
    play.cancel("w")
    play.go("h")


# ------------------------------------------------------------------------------------ sequences


def numbered(model: str, *steps: str) -> Act:
    """Send requests of sequences: `1` of sequence 1, `1+` first, `1-` last; `!` fails the batch."""

    def act(play: Play) -> None:
        for step in steps:
            x = 666.0 if "!" in step else 0.0
            given = {"name": "X", "datatype": "FP32", "shape": [1, 1], "data": [x]}
            flags = {"sequence_start": "+" in step, "sequence_end": "-" in step}
            body = {"id": step, "inputs": [given]}
            body["parameters"] = {"sequence_id": int(step[0])} | flags
            play.http(f"/v2/models/{model}/infer", body)

    return act


def sequences_in_a_backlog(play: Play) -> None:
    play.ask("narrow", SAYS, rows=1, sequence_id=1, sequence_start=True)
    play.ask("narrow", SAYS, rows=1, sequence_id=2, sequence_start=True, timeout=1)
    play.ask("narrow", SAYS, rows=1, sequence_id=1, sequence_end=True)


def cancelled_sequence(play: Play) -> None:
    play.send("narrow", play.gate("h") + SAYS, "h", rows=1, sequence_id=1, sequence_start=True)
    play.begun("h")
    play.send("narrow", SAYS, "w", rows=1, sequence_id=1)
    play.waits("narrow", 1)
    play.send("narrow", SAYS, "v", rows=1, sequence_id=1, sequence_end=True)
    play.waits("narrow", 2)
    play.cancel("w")
    play.go("h")
    play.answered()


def iterations(then: str) -> Act:
    """Return a script that reschedules its request twice, then continues with `then`."""
    again = "request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)"

    def act(play: Play) -> None:
        script = play.in_turn(again, again, then)
        play.ask("iterative", script, rows=1, sequence_id=5, sequence_start=True)

    return act


# -------------------------------------------------------------------------------------- loading


def loads_warm(play: Play) -> None:
    assert play.http("/v2/repository/models/warm/load") == 200


def loads_again(play: Play) -> None:
    path = "/v2/repository/models/reloaded"
    assert play.http(f"{path}/load") == 200
    play.ask("reloaded", SAYS)
    play.ask("reloaded", RAISES)
    assert play.http(f"{path}/unload") == 200
    # The model may still be in the index when it is not ready any more.
    play.until(lambda: why_not_ready(play.server, "reloaded"), "unloaded")
    assert play.http(f"{path}/load") == 200
    play.ask("reloaded", SAYS)


ERRORS_ARE_KEPT = "the real server keeps an error as an answer without outputs, and gives that next"
ENDED_BY_ITSELF = (
    "the real server ends each iterative sequence by a request of its own, and counts that as one "
    "that was cancelled, though no client has sent or lost it"
)
SERIES_STAY = (
    "in the metrics of the real server the failures of a model go on when it is loaded again"
)

ITERATED = ran(3) + failed("CANCELED")

SCRIPTS = [
    Script("batches of clients", sizes, {"rows": ran(1, 1) + ran(2, 2) + ran(1, 3) + ran(1, 4)}),
    Script("over HTTP", over_http, {"plain": ran(2), "many": ran()}),
    Script("an ordinary model over a stream", stream("plain", SAYS), {"plain": ran()}),
    Script("refused", refusals, {}),
    # Models' faults.
    Script("an error is a success", ask("plain", ERROR), {"plain": ran()}),
    Script("execute raises", ask("plain", RAISES), {"plain": broke()}),
    Script("execute raises over rows", ask("rows", RAISES, rows=3), {"rows": broke(3)}),
    Script("too few responses", ask("plain", "returned = []"), {"plain": broke()}),
    Script("no list of responses", ask("plain", "returned = 1"), {"plain": broke()}),
    # Senders of ordinary models.
    Script("a sender", ask("plain", SENDS), {"plain": ran()}),
    Script("a sender, the end apart", ask("plain", source("x")), {"plain": ran()}),
    Script("a sender, an error", ask("plain", FAILS_LAST), {"plain": ran()}),
    Script("a sender, later", ask("plain", f"later(lambda: {SENDS})"), {"plain": ran()}),
    # Cancelled.
    Script("cancelled while it runs", cancelled(SAYS), {"plain": ran()}),
    Script("cancelled, and the model stops", cancelled(*OBEYS), {"plain": ran()}),
    Script(
        "cancelled without a batcher",
        cancelled_without_a_batcher,
        {"plain": ran(2)},
        "here no scheduler gives an instance what nobody waits for",
        {"plain": ran() + failed("CANCELED")},
    ),
    Script("a stream is given up", cancelled_stream, {"many": ran()}),
    # Batches and queues.
    Script(
        "a batch of requests",
        waiting("batches", (SAYS, 1), (SAYS, 3)),
        {"batches": ran() + answered(1, 1) + answered(1, 3) + executed(4)},
    ),
    Script(
        "a batch fails",
        waiting("batches", (SAYS, 1), (RAISES, 2)),
        {"batches": ran() + broke(3, 2)},
    ),
    Script(
        "an error in a batch",
        waiting("batches", (ERROR, 1), (SAYS, 1)),
        {"batches": ran() + answered(2) + executed(2)},
    ),
    Script(
        "a full queue refuses",
        waiting("batches", *[(SAYS, 1)] * 4, then=ask("batches", SAYS, rows=1)),
        {"batches": ran() + answered(4) + executed(4)},
    ),
    Script(
        "a timeout in the queue",
        waiting("batches", then=ask("batches", SAYS, rows=1, timeout=1)),
        {"batches": ran() + failed("REJECTED")},
    ),
    Script(
        "cancelled in the queue",
        waiting("batches", (SAYS, 1), (SAYS, 1), then=lambda play: play.cancel("w1")),
        {"batches": ran(2) + failed("CANCELED")},
    ),
    # The response cache.
    Script(
        "one miss, two hits", ask("cached", SAYS, SAYS, SAYS), {"cached": ran() + MISS + hit(2)}
    ),
    Script(
        "an error of a cached model",
        ask("cached", ERROR, ERROR),
        {"cached": ran() + MISS + hit()},
        ERRORS_ARE_KEPT,
        {"cached": ran(2)},
    ),
    Script(
        "a cached model raises",
        ask("cached", RAISES, RAISES),
        {"cached": broke() + MISS + hit()},
        ERRORS_ARE_KEPT,
        {"cached": broke() + broke()},
    ),
    # Decoupled models.
    Script("no response", stream("many", ENDS), {"many": ran()}),
    Script("one response", stream("many", SENDS), {"many": ran()}),
    Script("three responses", stream("many", source("", "", "")), {"many": ran()}),
    Script("errors among them", stream("many", source("", None, "", None)), {"many": ran()}),
    Script("an error at last", stream("many", FAILS_LAST), {"many": ran()}),
    Script("responses later", stream("many", f"later(lambda: {SENDS})"), {"many": ran()}),
    Script(
        "rows of a decoupled model", stream("many_rows", SENDS, rows=3), {"many_rows": ran(1, 3)}
    ),
    Script("a decoupled model raises", stream("many", RAISES), {"many": broke()}),
    Script("it sends and raises", stream("many", source("", end=RAISES)), {"many": broke()}),
    Script("it returns something", stream("many", "returned = []"), {"many": broke()}),
    # Sequences.
    Script(
        "holes in a batch of sequences",
        numbered("direct", "1+", "2+", "3+", "2-", "3-", "1-"),
        {"direct": answered(6) + executed(1, 2) + executed(2, 2) + executed(3, 2)},
    ),
    Script(
        "the oldest sequences",
        numbered("oldest", "1+", "2+", "3+", "2-", "3-", "1-"),
        {"oldest": ran(6)},
    ),
    Script("a sequence that has not begun", numbered("direct", "4"), {}),
    Script(
        "a batch with holes fails",
        numbered("direct", "1+", "2+", "2!", "2-", "1-"),
        {"direct": answered(4) + executed(1, 2) + executed(2, 2) + broke(2)},
    ),
    Script(
        "a batch of the oldest fails",
        numbered("oldest", "1+", "2+", "2!", "2-", "1-"),
        {"oldest": ran(4) + broke()},
    ),
    Script(
        "a timeout in the backlog",
        sequences_in_a_backlog,
        {"narrow": ran(2) + failed("REJECTED")},
    ),
    Script(
        "a cancelled request ends its sequence",
        cancelled_sequence,
        {"narrow": ran() + failed("CANCELED", 2)},
    ),
    Script(
        "iterations",
        iterations(SAYS),
        {"iterative": ITERATED},
        ENDED_BY_ITSELF,
        {"iterative": ran(3)},
    ),
    Script(
        "iterations end in an error",
        iterations(ERROR),
        {"iterative": ITERATED},
        ENDED_BY_ITSELF,
        {"iterative": ran(3)},
    ),
    Script(
        "an iteration raises",
        iterations(RAISES),
        {"iterative": ran(2) + broke() + failed("CANCELED")},
        ENDED_BY_ITSELF,
        {"iterative": ran(2) + broke()},
    ),
    # Models that ask models.
    Script("a call", ask("other", calls("plain", SAYS)), {"other": ran(), "plain": ran()}),
    Script(
        "a call, an error", ask("other", calls("plain", ERROR)), {"other": ran(), "plain": ran()}
    ),
    Script(
        "a call raises", ask("other", calls("plain", RAISES)), {"other": ran(), "plain": broke()}
    ),
    Script(
        "a call of a sender", ask("other", calls("plain", SENDS)), {"other": ran(), "plain": ran()}
    ),
    Script("a call of no version", ask("other", calls("plain", SAYS, 7)), {"other": ran()}),
    Script("a refused call", ask("other", calls("rows", SAYS)), {"other": ran()}),
    Script(
        "calls of a cached model",
        ask("other", *[calls("cached", "answer = say('called')")] * 2),
        {"other": ran(2), "cached": ran() + MISS + hit()},
    ),
    Script(
        "a call of an ensemble",
        ask("other", calls("over_rows", SAYS) + "# refused"),
        {"other": ran()},
    ),
    Script(
        "a call of a decoupled model",
        ask("other", calls_many(source("", ""))),
        {"other": ran(), "many": ran()},
    ),
    Script(
        "a call of a decoupled model raises",
        ask("other", calls_many(RAISES)),
        {"other": ran(), "many": broke()},
    ),
    # Loading.
    Script("warm-up", loads_warm, {"warm": answered(6) + executed(2, 3)}),
    Script(
        "loaded again",
        loads_again,
        {"reloaded": ran() + Counter({"request_failure BACKEND": 1})},
        SERIES_STAY,
        {"reloaded": ran()},
    ),
]
