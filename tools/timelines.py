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
    simulation: _Simulation

    def send(self, response: InferResponse) -> None:
        self.life.answered = self.simulation.now


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
    simulation = _Simulation(work, lives, instances, shrinks, grows)
    while (moment := simulation.next_moment()) is not None:
        simulation.advance(moment)
    return lives


class _Simulation:
    """A queue, the requests that are offered to it, and the instances that execute them."""

    def __init__(
        self,
        work: WorkQueue,
        lives: Sequence[Life],
        instances: int,
        shrinks: Sequence[float],
        grows: Sequence[float],
    ) -> None:
        self.now = 0.0
        self._work = work
        self._lives = {life.name: life for life in lives}
        self._coming = sorted(lives, key=lambda life: life.arrives)
        self._cancels = [(life.cancels, life.name) for life in lives if life.cancels is not None]
        self._shrinks, self._grows = sorted(shrinks), sorted(grows)
        self._instances = instances
        self._idle = [*range(instances)]
        self._requests: dict[str, InferRequest] = {}
        self._running: dict[int, tuple[float, list[InferRequest]]] = {}  # by instance
        self._batches = 0

    def next_moment(self) -> float | None:
        """Return the time of the next event; None after the last one."""
        moments = [life.arrives for life in self._coming[:1]]
        moments += [end for end, _ in self._running.values()]
        moments += [*self._shrinks[:1], *self._grows[:1], *(at for at, _ in self._cancels)]
        deadline = self._work.next_deadline_ns()
        if deadline is not None:
            moments.append(max(deadline / _MS, self.now))
        return min(moments, default=None)

    def advance(self, moment: float) -> None:
        """Set the clock, and let everything happen that is due then."""
        self.now, now_ns = moment, round(moment * _MS)
        self._cancel()
        self._finish()
        self._offer(now_ns)
        self._resize(now_ns)
        self._start(now_ns)
        for refusal in self._work.refused(now_ns):
            life = self._lives[refusal.request.id]
            life.answered, life.error = self.now, refusal.error.message

    def _cancel(self) -> None:
        for at, name in [*self._cancels]:
            if at == self.now:
                self._cancels.remove((at, name))
                self._requests[name].cancellation.cancel()

    def _finish(self) -> None:
        for number, (end, batch) in list(self._running.items()):
            if end == self.now:
                del self._running[number]
                self._idle += [number] if number < self._instances else []
                for request in batch:
                    self._lives[request.id].ends = self.now
                    request.sink.send(InferResponse("m", 1, request.id))

    def _offer(self, now_ns: int) -> None:
        while self._coming and self._coming[0].arrives == self.now:
            life = self._coming.pop(0)
            sink = _Answer(life, self)
            request = InferRequest("m", {}, sink, id=life.name, queued_ns=now_ns, **life.fields)
            self._requests[life.name] = request
            try:
                self._work.offer(request, now_ns)
            except ServerError as error:
                life.answered, life.error = self.now, error.message

    def _resize(self, now_ns: int) -> None:
        if self._shrinks[:1] == [self.now]:
            del self._shrinks[0]
            self._instances -= 1
            self._idle = [number for number in self._idle if number < self._instances]
            self._work.resize((), [self._instances], now_ns)
        if self._grows[:1] == [self.now]:
            del self._grows[0]
            self._work.resize([self._instances], (), now_ns)
            self._idle.append(self._instances)
            self._instances += 1

    def _start(self, now_ns: int) -> None:
        for number in self._idle[::-1]:  # as the server: the last busy instance first
            if taken := self._work.take(number, now_ns):
                self._idle.remove(number)
                for request in taken:
                    life = self._lives[request.id]
                    life.begins, life.batch = self.now, self._batches
                lasts = max(self._lives[request.id].lasts for request in taken)
                self._running[number] = self.now + lasts, taken
                self._batches += 1


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
