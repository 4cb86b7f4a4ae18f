"""Calls to the replicas of models' deployments, each of which may die during a call."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from ray import serve
from ray.exceptions import NodeDiedError, ObjectLostError, RayActorError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle, DeploymentResponseGenerator

from reference_server.core.telemetry import Snapshot
from reference_server.ray import merging
from reference_server.ray.replica import ReplicaState
from reference_server.repository.versions import IndexEntry

log = logging.getLogger(__name__)

#: Attempts for a request whose replica dies: a request that kills replicas kills only two.
_TRIES = 2
#: Time limit in seconds for the state of replicas.
_STATE_TIMEOUT_S = 10
#: Serve's name for the state of a replica that accepts requests.
_RUNNING: Any = "RUNNING"
#: The replica or its machine has died.
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
    """Return the states of all replicas of these models that answer."""
    answers = await asyncio.gather(
        *(call_all(model, "state") for model in models), return_exceptions=True
    )
    return [state for answer in answers if isinstance(answer, list) for state in answer]


async def statistics(models: Iterable[Deployed], version: int) -> list[Snapshot]:
    """Return the counters of a version, or of all versions, summed over replicas."""
    replicas = await states(models)
    return merging.of_version(
        (each for replica in replicas for each in replica.statistics), version
    )


async def index(models: Mapping[str, Deployed], *, ready_only: bool) -> list[IndexEntry]:
    """Return the repository index of these models, by name."""
    replicas = await states(models.values())
    rows = (row for replica in replicas for row in replica.index)
    return merging.index(models, rows, ready_only=ready_only)


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
