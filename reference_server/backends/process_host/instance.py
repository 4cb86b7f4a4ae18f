"""The process host: a model instance whose model runs in a child process.

The child runs the instance of the inline host. This module supervises the process: it fails the
requests of a dead process and starts it again.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from reference_server.backends.environments import Environment
from reference_server.backends.instances import InstanceSpec, Readiness
from reference_server.backends.process_host import messages
from reference_server.backends.process_host.connection import Connection, Handler
from reference_server.backends.process_host.dispatcher import (
    CallDispatcher,
    InFlightRequests,
    write_record,
)
from reference_server.backends.process_host.messages import Parcel, ReceivedParcel
from reference_server.backends.process_host.process import ChildProcess, ProcessEnded, ProcessSlow
from reference_server.core.errors import ServerError, internal
from reference_server.core.health import Health
from reference_server.core.portability import ignore
from reference_server.core.ports import Clock, Metrics, ModelCalls, OpenInstance
from reference_server.core.request import Execution, InferRequest, InferResponse, deliver

log = logging.getLogger(__name__)

_NS_PER_S = 1_000_000_000


class Backoff:
    """The delays before a process is started again. Reads no clock.

    The first delay is `first_s`. Each further delay is twice as long, up to `limit_s`. If a process
    ran for longer than `limit_s`, the delays start again at `first_s`.
    """

    def __init__(self, first_s: float = 0.1, limit_s: float = 10.0) -> None:
        self._first_ns = int(first_s * _NS_PER_S)
        self._limit_ns = int(limit_s * _NS_PER_S)
        self._delay_ns = self._first_ns
        self._started_ns: int | None = None

    def started(self, now_ns: int) -> None:
        """Record that a process became ready."""
        self._started_ns = now_ns

    def ended(self, now_ns: int) -> int:
        """Record an end or a failed start; return the delay of the next start in nanoseconds."""
        if self._started_ns is not None and now_ns - self._started_ns > self._limit_ns:
            self._delay_ns = self._first_ns
        self._started_ns = None
        delay = self._delay_ns
        self._delay_ns = min(2 * delay, self._limit_ns)
        return delay


@dataclass(frozen=True, slots=True)
class Supervision:
    """The supervision of processes.

    Attributes:
        restarts: Whether to start a dead process again. Otherwise it stays dead and its model
            reports itself ready, as in Triton.
        execution_limit_s: The time limit of one execution; None means no limit.
        backoff: Creates the Backoff of an instance.
    """

    restarts: bool = True
    execution_limit_s: float | None = None
    backoff: Callable[[], Backoff] = field(default=Backoff)


class ProcessInstance:
    """A ModelInstance whose model runs in a child process.

    While the process is down, `execute` waits for the next attempt to start it, and fails if the
    attempt fails.

    Args:
        spec: The instance's specification.
        supervision: The rules of supervision.
        clock: The clock for delays and times of executions.
        metrics: The server's metrics.
        calls: The server's operations for BLS requests and model control.
        health: Receives the death and the return of the process, and the model's readiness probe.
        processes: Creates the child processes.
        prepare: Called with an instance that was started again, before it serves. The start
            fails if it raises ServerError.
        report: Receives the keys of portability rows that apply to the model.
    """

    def __init__(
        self,
        spec: InstanceSpec,
        supervision: Supervision,
        clock: Clock,
        metrics: Metrics,
        calls: ModelCalls,
        health: Health,
        processes: Callable[..., ChildProcess] = ChildProcess,
        prepare: Callable[[OpenInstance], None] | None = None,
        report: Callable[[str], None] = ignore,
    ) -> None:
        self._spec = spec
        self._prepare = prepare
        self._report = report
        self._supervision = supervision
        self._clock = clock
        self._metrics = metrics
        self._calls = calls
        self._health = health
        self._processes = processes
        self._readiness = Readiness(spec.name, self._is_ready)
        self._backoff = supervision.backoff()
        # Guards the attributes below.
        self._changed = threading.Condition()
        self._child: ChildProcess | None = None
        self._starting: ChildProcess | None = None
        self._failed_starts = 0
        self._closing = False
        self._in_flight = InFlightRequests()

    def __repr__(self) -> str:
        state = "down" if self._child is None else f"process {self._child.pid}"
        return f"ProcessInstance({self.name} of {self._spec.model_file}, {state})"

    @property
    def name(self) -> str:
        return self._spec.name

    @property
    def pid(self) -> int | None:
        """The process id; None while no process is ready."""
        child = self._child
        return None if child is None else child.pid

    def open(self) -> None:
        """Start the process and open the model in it. Blocks as long as the model does.

        Raises ServerError as the inline host does.
        """
        self._closing = False
        self._start_child(None)

    def execute(self, requests: Sequence[InferRequest]) -> Execution:
        return self._execute(self._ready_child(), requests)

    def _execute(self, child: ChildProcess, requests: Sequence[InferRequest]) -> Execution:
        numbers = self._in_flight.begin(child, requests)
        limit_s = self._supervision.execution_limit_s
        try:
            parcel = Parcel(child.connection)
            try:
                packed = [messages.pack_request(parcel, request) for request in requests]
                child.connection.send_job("execute", numbers.start, packed, parcel=parcel)
            except ServerError:
                parcel.free_unsent()
                raise
            self._in_flight.watch(numbers)
            execution: Execution = child.result(limit_s)
        except ProcessEnded:
            return self._aborted_execution(child, numbers, requests, self._unhealthy_error())
        except ProcessSlow:
            child.kill()  # Python code cannot be interrupted from here: end its process
            too_long = internal(
                f"Failed to process the request(s) for model '{self.name}', message: the execution "
                f"took longer than {limit_s:g} s, and its process was ended."
            )
            return self._aborted_execution(child, numbers, requests, too_long)
        except ServerError:
            if child.is_gone:  # requests cannot be packed: the shared memory is closed
                return self._aborted_execution(child, numbers, requests, self._unhealthy_error())
            self._in_flight.take(numbers)
            self._in_flight.executed(child)
            raise
        if not _is_result_for(execution, len(requests)):
            log.error("'%s': its process sent a result that does not fit the batch", self.name)
            child.kill()
            return self._aborted_execution(child, numbers, requests, self._unhealthy_error())
        self._in_flight.take(
            number
            for index, number in enumerate(numbers)
            if execution.responses[index] is not None or index in execution.rescheduled
        )
        self._in_flight.executed(child)
        if child.is_gone:  # `_ended` skips the requests of a running batch
            self._fail_late(child)
        return execution

    def close(self) -> None:
        """Finalize the model and end its process. Blocks as long as the model does."""
        with self._changed:
            self._closing = True
            child, self._child = self._child, None
            starting = self._starting
            self._changed.notify_all()
        if starting is not None:
            starting.kill()
        if child is not None:
            try:
                child.run("close")
            except (ProcessEnded, ServerError) as error:
                log.error("%s could not be finalized: %s", self.name, error)
            child.exit()
            self._fail_late(child)

    # ------------------------------------------------------------------------- the process's life

    def _start_child(self, prepare: Callable[[OpenInstance], None] | None) -> None:
        """Start a process, open and prepare the model in it, and serve. Raises ServerError."""
        child: ChildProcess = self._processes(
            self.name, self._new_dispatcher, lambda how: self._ended(child, how)
        )
        child.start()
        with self._changed:
            self._starting = child
            closing = self._closing
        try:
            if closing:  # `close` could not see this process
                child.kill()
            has_readiness = child.run("open", messages.pack_spec(self._spec))
            if prepare is not None:
                prepare(_Started(self.name, partial(self._execute, child)))
        except ProcessEnded as error:
            log.error("the process of instance '%s' %s while it was starting", self.name, error)
            raise self._unhealthy_error() from error
        except ServerError:
            child.exit()
            raise
        finally:
            with self._changed:
                self._starting = None
        with self._changed:
            if child.is_gone:  # it ended before `_child` was set, so `_ended` ignored it
                raise self._unhealthy_error()
            self._child = child
            self._backoff.started(self._clock.monotonic_ns())
            self._changed.notify_all()
        if has_readiness:
            self._health.add_probe(self.name, self._readiness)

    def _is_ready(self) -> bool:
        child = self._child
        return child is not None and child.is_ready()

    def _new_dispatcher(self, connection: Connection) -> CallDispatcher:
        return CallDispatcher(
            connection,
            self._metrics,
            self._calls,
            self._responded,
            self._in_flight.get,
            self._report,
        )

    def _ended(self, child: ChildProcess, how: str) -> None:
        """Handle the end of a process, on the thread that receives its events."""
        with self._changed:
            served = self._child is child  # otherwise it was starting or closing
            if served:
                self._child = None
                self._changed.notify_all()
        if not served:
            self._fail_late(child)
            return
        reason = f"the process of instance '{self.name}' {how}"
        log.error("%s", reason)
        if self._supervision.restarts:
            self._health.mark_unhealthy(self.name, reason)
            self._report("process-restart")
            threading.Thread(
                target=self._restart, args=(reason,), name=f"{self.name} restart", daemon=True
            ).start()
        self._fail_late(child)

    def _restart(self, reason: str) -> None:
        """Start a new process, with growing delays between the attempts."""
        while True:
            pause_ns = self._backoff.ended(self._clock.monotonic_ns())
            with self._changed:
                if self._changed.wait_for(lambda: self._closing, pause_ns / 1e9):
                    return
            try:
                self._start_child(self._prepare)
            except ServerError as error:
                log.error(
                    "the process of instance '%s' was not started again: %s", self.name, error
                )
                self._health.mark_unhealthy(self.name, f"{reason}; then: {error}")
                with self._changed:
                    self._failed_starts += 1
                    self._changed.notify_all()
            else:
                break
        log.info("the process of instance '%s' was started again", self.name)
        self._health.mark_healthy(self.name)

    def _ready_child(self) -> ChildProcess:
        """Return the process. If it is down, wait for the next attempt to start it."""
        with self._changed:
            if self._child is None and self._supervision.restarts:
                failed = self._failed_starts
                self._changed.wait_for(
                    lambda: self._child is not None or self._failed_starts != failed
                )
            if self._child is None:
                raise self._unhealthy_error()
            return self._child

    # ----------------------------------------------------------------------------- its requests

    def _responded(self, number: int, packed: messages.Packed, parcel: ReceivedParcel) -> None:
        """Deliver a response that is not a result of `execute`. Runs on the receiving thread."""
        response = messages.unpack_response(parcel, packed)
        final = response.final
        request = (
            self._in_flight.take([number]).get(number) if final else self._in_flight.get(number)
        )
        if request is not None:  # otherwise the request has failed already
            deliver(request.sink, response)

    def _aborted_execution(
        self,
        child: ChildProcess,
        numbers: range,
        requests: Sequence[InferRequest],
        error: ServerError,
    ) -> Execution:
        """Return the result of an execution whose process is gone.

        Each unanswered request gets the error. If all are unanswered, the error is raised.
        """
        unanswered = self._in_flight.take(numbers)
        self._in_flight.executed(child)
        if len(unanswered) == len(requests):
            raise error
        for request in unanswered.values():
            request.sink.send(self._error_response(request, error))
        now = self._clock.monotonic_ns()
        return Execution([None] * len(requests), now, now, failed=True)

    def _fail_late(self, child: ChildProcess) -> None:
        """Fail the requests that a dead process would have answered later."""
        for request in self._in_flight.take_late(child).values():
            request.sink.send(self._error_response(request, self._unhealthy_error()))

    def _error_response(self, request: InferRequest, error: ServerError) -> InferResponse:
        spec = self._spec
        return InferResponse(spec.model_name, spec.model_version, request.id, error=error)

    def _unhealthy_error(self) -> ServerError:
        return internal(f"Stub process '{self.name}' is not healthy.")


def _is_result_for(execution: object, count: int) -> bool:
    """Return whether `execution` is a valid result for `count` requests."""
    return (
        isinstance(execution, Execution)
        and len(execution.responses) == count
        and execution.rescheduled <= frozenset(range(count))
    )


@dataclass(frozen=True, slots=True)
class _Started:
    """A started instance that does not serve yet."""

    name: str
    execute: Callable[[Sequence[InferRequest]], Execution]


class _LogDispatcher:
    """The dispatcher of a process that completes a configuration. It handles log lines only."""

    def __init__(self, connection: Connection) -> None:
        self.handlers: Mapping[str, Handler] = {"log": write_record}

    def end(self) -> None:
        pass


def auto_complete_in_process(
    model_file: Path,
    version_directory: Path,
    model_name: str,
    config: dict[str, Any],
    environment: Environment | None,
) -> str:
    """Return the JSON of `config` completed by the model's `auto_complete_config`, if it has one.

    Blocks as long as the model does. Raises ServerError as the inline host does, and if the process
    ends.
    """
    child = ChildProcess(model_name, _LogDispatcher, environment=environment)
    child.start()
    try:
        completed: str = child.run(
            "complete", str(model_file), str(version_directory), model_name, json.dumps(config)
        )
    except ProcessEnded as error:
        raise internal(
            f"Stub process '{model_name}' {error} while it completed the configuration."
        ) from error
    finally:
        child.exit()
    return completed
