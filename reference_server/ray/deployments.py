"""Calls to the replicas of models' deployments, and the sum of the replicas' states.

Each replica may die during a call.
"""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from ray import serve
from ray.exceptions import NodeDiedError, ObjectLostError, RayActorError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle, DeploymentResponseGenerator

from reference_server.core.request import LATEST
from reference_server.core.telemetry import (
    BATCH_DURATIONS,
    DURATIONS,
    BatchStatistics,
    Duration,
    Family,
    FamilyHead,
    Sample,
    Snapshot,
)
from reference_server.ray.replica import ReplicaState
from reference_server.repository.versions import IndexEntry, State

log = logging.getLogger(__name__)

#: Attempts for a request whose replica dies: a request that kills replicas kills only two.
_TRIES = 2
#: Time limit in seconds for the state of replicas.
_STATE_TIMEOUT_S = 10
#: Serve's name for the state of a replica that accepts requests.
_RUNNING: Any = "RUNNING"
#: The errors of a call whose replica, or the replica's machine, has died.
_Died = (RayActorError, NodeDiedError, ObjectLostError)
#: The errors of a call that no replica answered.
Unanswered = (*_Died, BackPressureError, DeploymentUnavailableError)


@dataclass(frozen=True)
class Deployed:
    """A model's deployment.

    With `keeps_state`, calls are not repeated after a replica's death. Stream requests to a model
    that is not `decoupled` are answered in their order.
    """

    handle: DeploymentHandle[Any]
    keeps_state: bool
    decoupled: bool

    @property
    def tries(self) -> range:
        """For each attempt, the number of remaining attempts."""
        return range(0 if self.keeps_state else _TRIES - 1, -1, -1)


async def call_one(model: Deployed, method: str, *arguments: object) -> Any:  # noqa: ANN401 (what the method returns)
    """Call a method of one replica and return its result. Raises one of `Unanswered`."""
    for left in model.tries:
        try:
            return await getattr(model.handle, method).remote(*arguments)
        except _Died as error:
            if not left:
                raise
            log.warning("replica died, repeating the request: %s", _first_line(error))
    raise AssertionError("the last try returns or raises")


async def stream(model: Deployed, method: str, *arguments: object) -> AsyncIterator[Any]:
    """Call a generator method of one replica. A stream that has started is not repeated."""
    streams: DeploymentHandle[Any] = model.handle.options(stream=True)
    for left in model.tries:
        has_started = False
        try:
            answer = cast(
                "DeploymentResponseGenerator[Any]", getattr(streams, method).remote(*arguments)
            )
            async for each in answer:
                has_started = True
                yield each
        except _Died as error:
            if has_started or not left:
                raise
            log.warning("replica died, repeating the request: %s", _first_line(error))
        else:
            return


async def call_all(model: Deployed, method: str, *arguments: object) -> list[Any]:
    """Call a method of all replicas; return the results without errors, at least one."""
    answers = await model.handle.broadcast(method, *arguments).results_async(
        timeout_s=_STATE_TIMEOUT_S, return_exceptions=True
    )
    good = [answer for answer in answers if not isinstance(answer, Exception)]
    if not good:
        raise answers[0]
    return good


async def states(models: Iterable[Deployed]) -> list[ReplicaState]:
    """Return the states of all replicas of these models, except replicas that do not answer."""
    answers = await asyncio.gather(
        *(call_all(model, "state") for model in models), return_exceptions=True
    )
    return [state for answer in answers if isinstance(answer, list) for state in answer]


async def statistics(models: Iterable[Deployed], version: int) -> list[Snapshot]:
    """Return the counters of a version, or of all versions, summed over replicas."""
    replicas = await states(models)
    return of_version((each for replica in replicas for each in replica.statistics), version)


async def index(models: Mapping[str, Deployed], *, ready_only: bool) -> list[IndexEntry]:
    """Return the repository index of these models, by name."""
    replicas = await states(models.values())
    rows = (row for replica in replicas for row in replica.index)
    return merged_index(models, rows, ready_only=ready_only)


def all_run(models: Iterable[str]) -> bool:
    """Return True if each model has a replica that accepts requests. Blocks."""
    application = serve.status().applications.get(serve.get_replica_context().app_name)
    if application is None:
        return False
    running = {
        name: deployment.replica_states.get(_RUNNING, 0)
        for name, deployment in application.deployments.items()
    }
    return all(running.get(name) for name in models)


def described(error: Exception) -> str:
    """Return the error text of `Unanswered` for a client."""
    return f"the model is unavailable: {_first_line(error)}"


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


# -- the states of replicas merged into the state of one server

#: The label of the replica in metrics.
REPLICA = "replica"


def summed(snapshots: Iterable[Snapshot]) -> list[Snapshot]:
    """Return the counters of each version of each model, summed over replicas."""
    found: dict[tuple[str, int], Snapshot] = {}
    for snapshot in snapshots:
        key = (snapshot.name, snapshot.version)
        if key in found:
            _add(found[key], snapshot)
        else:
            found[key] = copy.deepcopy(snapshot)
    return [found[key] for key in sorted(found)]


def _add(total: Snapshot, more: Snapshot) -> None:
    total.last_inference_ms = max(total.last_inference_ms, more.last_inference_ms)
    total.inference_count += more.inference_count
    total.execution_count += more.execution_count
    for name in DURATIONS:
        _add_duration(getattr(total, name), getattr(more, name))
    for size, batches in more.batches.items():
        into = total.batches.setdefault(size, BatchStatistics())
        for name in BATCH_DURATIONS:
            _add_duration(getattr(into, name), getattr(batches, name))
    for reason, count in more.failures.items():
        total.failures[reason] = total.failures.get(reason, 0) + count


def _add_duration(total: Duration, more: Duration) -> None:
    total.count += more.count
    total.ns += more.ns


def families(pages: Mapping[str, Sequence[Family]]) -> list[Family]:
    """Return the metrics of all replicas; each series has a label with its replica."""
    found: dict[str, tuple[FamilyHead, list[Sample]]] = {}
    for replica, page in pages.items():
        for family in page:
            _, samples = found.setdefault(family.head.name, (family.head, []))
            samples += (
                replace(sample, labels=(*sample.labels, (REPLICA, replica)))
                for sample in family.samples
            )
    return [Family(head, samples) for head, samples in found.values()]


def of_version(snapshots: Iterable[Snapshot], version: int) -> list[Snapshot]:
    """Return the counters of one version, or of all, summed over replicas."""
    return [each for each in summed(snapshots) if version in (LATEST, each.version)]


def merged_index(
    models: Iterable[str], entries: Iterable[IndexEntry], *, ready_only: bool
) -> list[IndexEntry]:
    """Return the index of all models. A model without a replica is unavailable."""
    rows: dict[tuple[str, int | None], IndexEntry] = {}
    for row in entries:
        rows.setdefault((row.name, row.version), row)
    named = {name for name, _ in rows}
    for name in models:
        if name not in named:
            rows[name, None] = IndexEntry(name, None, State.UNAVAILABLE, "no replica runs")
    found = [row for _, row in sorted(rows.items(), key=lambda item: (item[0][0], item[0][1] or 0))]
    return [row for row in found if not ready_only or row.state is State.READY]
