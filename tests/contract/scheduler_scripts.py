"""Scripts of waiting requests: the batches, the refused requests and the changed counters.

A script controls the start and the end of the executions of one `gated` model. It sends a request
only after it has seen the effect of the previous one, so nothing depends on a server's speed. The
result is an Outcome, which is equal on all servers.
"""

from __future__ import annotations

import contextlib
import queue
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import tritonclient.grpc as triton
from contract.casebook import get
from contract.wire import exchange
from support.servers import Server
from support.waiting import PATIENCE_SECONDS, eventually

from reference_server.config.scheduler_settings import InstanceConfig, Resource
from reference_server.scheduling.rate_limiter import RateLimitedInstance, ResourceManager

_SETTLING_CALLS = 50
GATED = Path(__file__).with_name("probe_models") / "gated.py"
_MOVING = re.compile(
    r"nv_inference_(request_success|request_failure|count|exec_count)"
    r'{model="(\w+)",(?:reason="(\w+)",)?version="1"} (\d+)$'
)


@dataclass
class Outcome:
    """The batches in the order of their starts, the answers, and the changed counters.

    An answer is "" for success, or the text of the error.
    """

    batches: list[str] = field(default_factory=list)
    answers: dict[str, str] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    moved: dict[str, int] = field(default_factory=dict)


class Play:
    """One script on one server; `model` has no other clients."""

    def __init__(self, server: Server, repository: Path, model: str) -> None:
        self._server = server
        self._folder = repository / model
        self._model = model
        self._client = triton.InferenceServerClient(server.grpc)
        self._calls: dict[str, triton.CallContext] = {}
        self._rows: dict[str, int] = {}
        self._arrived: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
        for gate in self._folder.glob("go-*"):
            gate.unlink()
        self._seen = len(self._lines())
        self.outcome = Outcome()
        self._before = self._counters()

    # ------------------------------------------------------------------------------ what it does

    def send(
        self, *ids: str, rows: int = 1, width: int = 1, flat: bool = False, **settings: int
    ) -> None:
        """Send requests without waiting; `flat` requests have no batch dimension."""
        shape = (width,) if flat else (rows, width)
        for id in ids:
            tensor = triton.InferInput("X", shape, "FP32")
            tensor.set_data_from_numpy(np.zeros(shape, np.float32))
            self._rows[id] = rows
            self._calls[id] = self._client.async_infer(
                self._model, [tensor], self._note(id), request_id=id, **settings
            )

    def hold(self, *ids: str) -> None:
        """Occupy one instance with each of these requests."""
        for id in ids:
            self.send(id)
            self.begun(id)

    def wait(self, *ids: str, **settings: int) -> None:
        """Send requests one by one, each when the previous one is pending."""
        for id in ids:
            pending = self.pending() + 1
            self.send(id, **settings)
            self.until(self.pending, pending)

    def begun(self, *batches: str) -> None:
        """Check that these batches start now, in this order."""
        seen = len(self.outcome.batches) + len(batches)
        self.until(lambda: min(len(self._lines()) - self._seen, seen), seen)
        self.outcome.batches = self._lines()[self._seen :][:seen]

    def go(self, *ids: str) -> None:
        """End the batches whose first requests are these."""
        for id in ids:
            (self._folder / f"go-{id}").touch()

    def answered(self, *ids: str) -> None:
        """Wait until these requests have a response or an error."""
        wanted = set(ids)
        while not wanted <= self.outcome.answers.keys():
            id, said = self._arrived.get(timeout=PATIENCE_SECONDS)
            self.outcome.answers[id] = said
            self.outcome.order.append(id)

    def cancel(self, id: str) -> None:
        """Cancel a request, and wait until the server has noticed.

        The server does not report it. A few threads process all inferences in the order of their
        queues, so they have seen the cancellation once they have answered later requests.
        """
        self._calls[id].cancel()
        self.answered(id)
        self.settle()

    def settle(self) -> None:
        """Wait until the server has processed what it received and what it answered."""
        for _ in range(_SETTLING_CALLS):
            with contextlib.suppress(triton.InferenceServerException):
                self._client.infer("nobody", [])

    def finish(self, moves: Mapping[str, int]) -> Outcome:
        """Release all requests; return the outcome when all have a response and are counted.

        `moves` are expected changes of counters in addition to those that follow from the batches.
        """
        self.go(*self._calls)
        self.answered(*self._calls)
        ran = [id for line in self._lines()[self._seen :] for id in line.split()]
        executions = len(self._lines()) - self._seen
        wanted = {
            "request_success": len(ran),
            "count": sum(self._rows[id] for id in ran),
            "exec_count": executions,
            **moves,
        }
        self.outcome.moved = moved = eventually(self._moved, wanted)
        self.outcome.batches = self._lines()[self._seen :]
        assert moved == wanted, f"{moved}, not {wanted}"
        return self.outcome

    def close(self) -> None:
        """Close the connection and release the requests that the script has left waiting."""
        self.go(*self._calls)
        self._client.close()

    # ---------------------------------------------------------------------------- what it looks at

    def pending(self) -> int:
        """Return the number of pending requests from the metrics."""
        line = f'nv_inference_pending_request_count{{model="{self._model}",version="1"}} '
        return int(self._page().split(line)[1].split("\n")[0])

    def until(self, read: Callable[[], object], wanted: object) -> None:
        """Wait until `read` returns the wanted value; fail if it does not."""
        found = eventually(read, wanted)
        assert found == wanted, f"{found}, not {wanted}; {self.outcome}"

    def _note(self, id: str) -> Callable[..., None]:
        def note(result: object, error: triton.InferenceServerException | None) -> None:
            self._arrived.put((id, "" if error is None else f"{error.status()} {error.message()}"))

        return note

    def _lines(self) -> list[str]:
        path = self._folder / "begun"
        return path.read_text().split("\n")[:-1] if path.exists() else []

    def _page(self) -> str:
        return exchange(self._server.metrics, get("/metrics")).replies[0].body.decode()

    def _counters(self) -> dict[str, int]:
        counts = {}
        for line in self._page().split("\n"):
            found = _MOVING.match(line)
            if found and found[2] == self._model:
                counts[f"{found[1]} {found[3]}" if found[3] else found[1]] = int(found[4])
        return counts

    def _moved(self) -> dict[str, int]:
        after = self._counters()
        return {key: n - self._before[key] for key, n in after.items() if n != self._before[key]}


@dataclass(frozen=True)
class Script:
    """The requests to a model, and the expected outcome."""

    model: str
    act: Callable[[Play], None]
    batches: str
    refused: Mapping[str, str] = field(default_factory=dict)
    moved: Mapping[str, int] = field(default_factory=dict)


MODELS = {
    "alone": "max_batch_size: 4",
    "batches": "max_batch_size: 4 dynamic_batching { }",
    "preferring": "max_batch_size: 8 dynamic_batching { preferred_batch_size: [2, 4] }",
    "delaying": "max_batch_size: 8 dynamic_batching { preferred_batch_size: [2] "
    "max_queue_delay_microseconds: 3600000000 }",
    "unbatched": "dynamic_batching { }",
    "short": "max_batch_size: 4 dynamic_batching { default_queue_policy { max_queue_size: 2 } }",
    "levels": """max_batch_size: 4
        dynamic_batching { priority_levels: 3 default_priority_level: 2 }""",
    "hasty": """max_batch_size: 4 dynamic_batching { default_queue_policy {
        default_timeout_microseconds: 3600000000 allow_timeout_override: true } }""",
    "patient": """max_batch_size: 4 dynamic_batching { default_queue_policy {
        timeout_action: DELAY default_timeout_microseconds: 3600000000
        allow_timeout_override: true } }""",
    "orderly": """max_batch_size: 1 dynamic_batching { preserve_ordering: true }
        instance_group [ { count: 3 } ]""",
    "several": """max_batch_size: 4 dynamic_batching { }
        instance_group [ { count: 1 }, { name: "more" kind: KIND_MODEL count: 2 } ]""",
    "limited": """max_batch_size: 4 dynamic_batching { } instance_group [ { count: 2
        rate_limiter { resources { name: "R" count: 2 } } } ]""",
    "unlimited": "",
}


def alone(play: Play) -> None:
    play.hold("h")
    play.wait("a", "b")


def batches(play: Play) -> None:
    play.hold("h")
    play.wait("a", "b", "c", "d", "e")


def shapes(play: Play) -> None:
    play.hold("h")
    play.wait("a")
    play.wait("b", "c", width=2)
    play.wait("d")


def preferring(play: Play) -> None:
    play.hold("h")
    for id, rows in zip("abcdefg", (1, 1, 1, 2, 1, 3, 1), strict=True):
        play.wait(id, rows=rows)


def delaying(play: Play) -> None:
    play.send("h", rows=2)
    play.begun("h")
    play.wait("a", "b", "c")
    play.wait("d", rows=2)


def unbatched(play: Play) -> None:
    play.send("h", flat=True)
    play.begun("h")
    play.wait("a", "b", flat=True)


def short(play: Play) -> None:
    play.hold("h")
    play.wait("a", "b", rows=3)
    play.send("c")
    play.answered("c")


def levels(play: Play) -> None:
    play.hold("h")
    for id, priority in (("a", 3), ("b", 0), ("c", 1), ("d", 3), ("e", 1), ("f", 9), ("g", 2)):
        play.wait(id, priority=priority)
    play.cancel("b")
    play.cancel("d")


def hasty(play: Play) -> None:
    play.hold("h")
    play.wait("a", "c")
    play.send("b", timeout=1)
    play.answered("b")


def at_once(play: Play) -> None:
    play.send("a", timeout=1)
    play.go("a")
    play.answered("a")
    play.send("b")


def patient(play: Play) -> None:
    play.hold("h")
    play.wait("a", timeout=1)
    play.wait("b")
    play.wait("c", timeout=1)
    play.wait("d")


def orderly(play: Play) -> None:
    play.hold("a", "b", "c")
    play.go("c")
    play.go("b")


def several(play: Play) -> None:
    play.hold("a", "b", "c")
    play.wait("d", "e")
    play.go("b")
    play.begun("d e")


def limited(play: Play) -> None:
    play.hold("h")  # the other instance is idle, but must not run
    play.wait("a", "b")


SCRIPTS = {
    "without a batcher": Script("alone", alone, "h | a | b"),
    "a batch": Script("batches", batches, "h | a b c d | e"),
    "shapes": Script("batches", shapes, "h | a | b c | d"),
    "preferred sizes": Script("preferring", preferring, "h | a b | c d e | f g"),
    "preferred sizes and a delay": Script("delaying", delaying, "h | a b c | d"),
    "no batches": Script("unbatched", unbatched, "h | a | b"),
    "a full queue": Script(
        "short",
        short,
        "h | a | b",
        {"c": "StatusCode.UNAVAILABLE [request id: c] Exceeds maximum queue size"},
    ),
    "priorities": Script(
        "levels", levels, "h | c e f g | a", moved={"request_failure CANCELED": 2}
    ),
    "a timeout": Script(
        "hasty",
        hasty,
        "h | a c",
        {"b": "StatusCode.UNAVAILABLE Request timeout expired"},
        {"request_failure REJECTED": 1},
    ),
    "a timeout that is over before an idle model is given it": Script(
        "hasty",
        at_once,
        "b",
        {"a": "StatusCode.UNAVAILABLE Request timeout expired"},
        {"request_failure REJECTED": 1},
    ),
    "a timeout that delays, of an idle model": Script("patient", at_once, "a | b"),
    "a timeout that delays": Script("patient", patient, "h | b d a c"),
    "order": Script("orderly", orderly, "a | b | c"),
    "groups of instances": Script("several", several, "a | b | c | d e"),
}

#: Models on a server whose rate limiter has three units of the resource.
LIMITED = Script("limited", limited, "h | a b")


#: Priority and need of models that share two units of a resource. All priorities differ, because
#: Triton's order of equal ranks depends on its heap.
_SHARES = {"first": (1, 2), "second": (2, 1), "third": (3, 1), "fourth": (4, 0)}
SHARING = {
    name: f"""instance_group [ {{ count: 1 rate_limiter {{ priority: {priority}
        {f'resources {{ name: "S" count: {count} }}' if count else ""} }} }} ]"""
    for name, (priority, count) in _SHARES.items()
}
_STEPS = 40


def share(plays: Mapping[str, Play], seed: int) -> None:
    """Start and end random executions of the models of `SHARING`.

    The reference server's rate limiter predicts when each of them starts.
    """
    draw = random.Random(seed)
    manager = ResourceManager({("S", False): 2})
    limited = {}
    for name, (priority, count) in _SHARES.items():
        needs = (Resource("S", count, is_global=False),) if count else ()
        (limited[name],) = manager.add([InstanceConfig(name, "CPU", priority, needs)])
    queued: dict[str, list[str]] = {name: [] for name in plays}
    running: dict[str, str] = {}

    def start(granted: Sequence[RateLimitedInstance]) -> None:
        for name in [name for name, each in limited.items() if each in granted]:
            running[name] = queued[name].pop(0)
            plays[name].begun(running[name])

    for number in range(_STEPS):
        if running and draw.random() < 0.5:
            name = draw.choice(sorted(running))
            ended = running.pop(name)
            plays[name].go(ended)
            plays[name].answered(ended)
            if queued[name]:
                manager.request(limited[name])
            start(manager.release(limited[name]))
        else:
            name = draw.choice(sorted(plays))
            queued[name].append(str(number))
            plays[name].send(str(number), flat=True)
            if name not in running and queued[name][1:] == []:
                start(manager.request(limited[name]))
        plays[name].settle()
        for name, each in plays.items():
            each.until(each.pending, len(queued[name]))


def play(server: Server, repository: Path, script: Script) -> Outcome:
    playing = Play(server, repository, script.model)
    try:
        script.act(playing)
        return playing.finish(dict(script.moved))
    finally:
        playing.close()


def write(repository: Path, models: Mapping[str, str] = MODELS, source: Path = GATED) -> None:
    """Write gated models, by name and scheduler settings, into a repository."""
    for name, settings in models.items():
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "1" / "model.py").write_text(source.read_text())
        (repository / name / "config.pbtxt").write_text(
            f"""backend: "python"
            input {{ name: "X" data_type: TYPE_FP32 dims: [-1] }}
            output {{ name: "Y" data_type: TYPE_FP32 dims: [-1] }}
            {settings}"""
        )
