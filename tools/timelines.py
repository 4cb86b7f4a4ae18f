"""Draw what the server's schedulers decide, under a simulated clock.

    python -m tools.timelines docs/images      the pictures of docs/schedulers.md, again

This program does not form batches: it runs the server's scheduler classes, and draws the times of
the requests.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from reference_server.config.scheduler_settings import DynamicBatching, QueuePolicy
from reference_server.core.errors import ServerError
from reference_server.core.request import InferRequest, InferResponse
from reference_server.scheduling.dynamic_batcher import DynamicBatcher
from reference_server.scheduling.policy_batcher import PolicyBatcher
from reference_server.scheduling.response_order import OrderedQueue
from reference_server.scheduling.work_queue import WorkQueue

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MS = 1_000_000


@dataclass
class Life:
    """One request, and the times of its arrival, start, end and response, in milliseconds."""

    name: str
    arrives: float
    lasts: float = 40
    fields: Mapping[str, int] = field(default_factory=dict)
    cancels: float | None = None
    begins: float | None = None
    ends: float | None = None
    answered: float | None = None
    batch: int = -1
    error: str | None = None


@dataclass
class _Answer:
    """The sink of a request, which stores the time of the response."""

    life: Life
    clock: list[float]

    def send(self, response: InferResponse) -> None:
        self.life.answered = self.clock[0]


def play(
    work: WorkQueue,
    lives: Sequence[Life],
    instances: int = 1,
    shrinks: Sequence[float] = (),
    grows: Sequence[float] = (),
) -> Sequence[Life]:
    """Offer requests to the queue of a model; fill in their times, batches and errors.

    A batch lasts as long as the longest of its requests. At each time in `shrinks` an instance is
    removed, and at each time in `grows` one is added.
    """
    clock = [0.0]
    shrinks, grows = sorted(shrinks), sorted(grows)
    idle = [*range(instances)]
    known = {life.name: life for life in lives}
    coming = sorted(lives, key=lambda life: life.arrives)
    cancels = [(life.cancels, life.name) for life in lives if life.cancels is not None]
    requests: dict[str, InferRequest] = {}
    running: dict[int, tuple[float, list[InferRequest]]] = {}
    batches = 0
    while True:
        moments = [life.arrives for life in coming[:1]] + [end for end, _ in running.values()]
        moments += [*shrinks[:1], *grows[:1], *(at for at, _ in cancels)]
        deadline = work.next_deadline_ns()
        if deadline is not None:
            moments.append(max(deadline / _MS, clock[0]))
        if not moments:
            return lives
        clock[0] = now = min(moments)
        for at, name in [*cancels]:
            if at == now:
                cancels.remove((at, name))
                requests[name].cancellation.cancel()
        for number, (end, batch) in list(running.items()):
            if end == now:
                del running[number]
                idle += [number] if number < instances else []
                for request in batch:
                    known[request.id].ends = now
                    request.sink.send(InferResponse("m", 1, request.id))
        now_ns = round(now * _MS)
        while coming and coming[0].arrives == now:
            life = coming.pop(0)
            sink = _Answer(life, clock)
            request = InferRequest("m", {}, sink, id=life.name, queued_ns=now_ns, **life.fields)
            requests[life.name] = request
            try:
                work.offer(request, now_ns)
            except ServerError as error:
                life.answered, life.error = now, error.message
        if shrinks[:1] == [now]:
            shrinks = shrinks[1:]
            instances -= 1
            idle = [number for number in idle if number < instances]
            work.resize((), [instances], now_ns)
        if grows[:1] == [now]:
            grows = grows[1:]
            work.resize([instances], (), now_ns)
            idle.append(instances)
            instances += 1
        for number in idle[::-1]:  # in the server's order: the last busy instance first
            if taken := work.take(number, now_ns):
                idle.remove(number)
                for request in taken:
                    known[request.id].begins, known[request.id].batch = now, batches
                running[number] = now + max(known[r.id].lasts for r in taken), taken
                batches += 1
        for refusal in work.refused(now_ns):
            life = known[refusal.request.id]
            life.answered, life.error = now, refusal.error.message


def draw(axes: Axes, title: str, lives: Sequence[Life]) -> None:
    """Draw a bar for each request: grey while it waits, in its batch's colour while it runs."""
    for row, life in enumerate(lives):
        assert life.answered is not None
        begins = life.answered if life.begins is None else life.begins
        axes.barh(row, begins - life.arrives, 0.35, life.arrives, color="#c8c8c8")
        if life.begins is None:
            axes.plot(begins, row, "x", color="#c0392b", markersize=9, markeredgewidth=2.5)
            continue
        assert life.ends is not None
        axes.barh(row, life.ends - begins, 0.7, begins, color=f"C{life.batch % 10}")
        if life.answered > life.ends:
            axes.barh(row, life.answered - life.ends, 0.1, life.ends, color="#404040")
        axes.plot(life.answered, row, "|", color="black", markersize=13, markeredgewidth=2)
    axes.set_yticks(range(len(lives)), [life.name for life in lives])
    axes.invert_yaxis()
    axes.set_title(title, loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlim(left=0)


def _singles() -> list[Life]:
    return [Life(f"request {number + 1}", 12.0 * number) for number in range(8)]


def delay() -> dict[str, Sequence[Life]]:
    """Play eight requests without and with a queue delay."""
    return {
        "dynamic_batching { }": play(DynamicBatcher(8, (), 0), _singles()),
        "preferred_batch_size: [4]  max_queue_delay_microseconds: 60000": play(
            DynamicBatcher(8, (4,), 60 * _MS), _singles()
        ),
    }


def priorities() -> dict[str, Sequence[Life]]:
    """Play two priority levels; a request of level 2 waits for at most 100 ms."""
    settings = DynamicBatching(
        (), 0, levels=2, default_level=2, policies={2: QueuePolicy(timeout_us=100_000)}
    )
    lives = [Life(f"level 2, request {number + 1}", 6.0 * number) for number in range(5)]
    lives += [
        Life(f"level 1, request {number + 1}", at, fields={"priority": 1})
        for number, at in enumerate((30.0, 60.0))
    ]
    return {"one instance, max_batch_size: 2": play(PolicyBatcher(2, settings), lives)}


def order() -> dict[str, Sequence[Life]]:
    """Play requests of different durations on two instances."""

    def lives() -> list[Life]:
        lasting = (90.0, 20.0, 20.0, 50.0)
        return [Life(f"request {i + 1}", 5.0 * i, lasts) for i, lasts in enumerate(lasting)]

    return {
        "two instances": play(DynamicBatcher(1, (), 0, 2), lives(), 2),
        "preserve_ordering: true": play(OrderedQueue(DynamicBatcher(1, (), 0, 2)), lives(), 2),
    }


PICTURES = {
    "scheduler_delay": delay,
    "scheduler_priorities": priorities,
    "scheduler_order": order,
}


def main(folder: Path) -> None:
    """Draw all pictures into `folder`."""
    # Only drawing needs matplotlib, whose import would take half a second whenever tests start.
    import matplotlib as mpl

    mpl.use("agg")  # draw to files only

    from matplotlib import pyplot as plt

    for name, make in PICTURES.items():
        panels = make()
        heights = [0.6 + 0.24 * len(lives) for lives in panels.values()]
        figure, axes = plt.subplots(
            len(panels), squeeze=False, sharex=True, figsize=(8, sum(heights) + 0.4),
            height_ratios=heights, layout="constrained",
        )  # fmt: skip
        for place, (title, lives) in zip(axes[:, 0], panels.items(), strict=True):
            draw(place, title, lives)
        axes[-1, 0].set_xlabel("milliseconds")
        figure.savefig(folder / f"{name}.png", dpi=110, metadata={"Software": None})
        plt.close(figure)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
