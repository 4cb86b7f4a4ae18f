"""Asking the replicas of models' deployments, each of which may be gone while it is asked."""

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
from reference_server.ray.replica import Told
from reference_server.repository.versions import IndexEntry

log = logging.getLogger(__name__)

#: How often a request is sent whose replica dies: what kills its replica kills two.
_TRIES = 2
#: How long, in seconds, replicas may take to tell of themselves.
_TELL_S = 10
#: Of a replica that takes requests, as Serve's status names it.
_RUNNING: Any = "RUNNING"
#: The replica, or its machine, is gone, and the answer with it.
_Gone = (RayActorError, NodeDiedError, ObjectLostError)
#: What is raised where no replica answers.
Unanswered = (*_Gone, BackPressureError, DeploymentUnavailableError)


@dataclass(frozen=True)
class Deployed:
    """A model's deployment. What `keeps_state` is not asked again when its replica has died.

    Requests of one stream to a model that is not `decoupled` are answered in their order.
    """

    handle: DeploymentHandle[Any]
    keeps_state: bool
    decoupled: bool

    @property
    def tries(self) -> range:
        """By how many more tries each one is followed."""
        return range(0 if self.keeps_state else _TRIES - 1, -1, -1)


async def ask_one(model: Deployed, method: str, *arguments: object) -> Any:  # noqa: ANN401 (what the method returns)
    """What one replica answers. Raises one of `Unanswered`."""
    for left in model.tries:
        try:
            return await getattr(model.handle, method).remote(*arguments)
        except _Gone as error:
            if not left:
                raise
            log.warning("sent again, for its replica is gone: %s", _first_line(error))
    raise AssertionError("the last try returns or raises")


async def stream(model: Deployed, method: str, *arguments: object) -> AsyncIterator[Any]:
    """The same, as it comes; of what has begun to come the rest is not asked again."""
    streams: DeploymentHandle[Any] = model.handle.options(stream=True)
    for left in model.tries:
        has_begun = False
        try:
            answer = cast(
                "DeploymentResponseGenerator[Any]", getattr(streams, method).remote(*arguments)
            )
            async for each in answer:
                has_begun = True
                yield each
        except _Gone as error:
            if has_begun or not left:
                raise
            log.warning("sent again, for its replica is gone: %s", _first_line(error))
        else:
            return


async def ask_all(model: Deployed, method: str, *arguments: object) -> list[Any]:
    """What all replicas answer that do; at least one has."""
    answers = await model.handle.broadcast(method, *arguments).results_async(
        timeout_s=_TELL_S, return_exceptions=True
    )
    good = [answer for answer in answers if not isinstance(answer, Exception)]
    if not good:
        raise answers[0]
    return good


async def tell(models: Iterable[Deployed]) -> list[Told]:
    """What the replicas of these models tell; of one that has none, nothing."""
    answers = await asyncio.gather(
        *(ask_all(model, "tell") for model in models), return_exceptions=True
    )
    return [told for answer in answers if isinstance(answer, list) for told in answer]


async def statistics(models: Iterable[Deployed], version: int) -> list[Snapshot]:
    """The counters of one version of these models, or of all; all replicas together."""
    told = await tell(models)
    return merging.of_version((each for replica in told for each in replica.statistics), version)


async def index(models: Mapping[str, Deployed], *, ready_only: bool) -> list[IndexEntry]:
    """The index of these models, by name."""
    told = await tell(models.values())
    rows = (row for replica in told for row in replica.index)
    return merging.index(models, rows, ready_only=ready_only)


def all_run(models: Iterable[str]) -> bool:
    """Whether each model has a replica that takes requests. Blocks."""
    application = serve.status().applications.get(serve.get_replica_context().app_name)
    if application is None:
        return False
    running = {
        name: deployment.replica_states.get(_RUNNING, 0)
        for name, deployment in application.deployments.items()
    }
    return all(running.get(name) for name in models)


def described(error: Exception) -> str:
    """What a client is told of `Unanswered`."""
    return f"the model cannot be asked now: {_first_line(error)}"


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
