"""The hosts of Python models: the backend's settings, and the choice of a host per model."""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from reference_server.backends.environments import PARAMETER, Environment, Environments
from reference_server.backends.instances import InstanceSpec
from reference_server.backends.process_host.instance import (
    ProcessInstance,
    Supervision,
    auto_complete_in_process,
)
from reference_server.backends.process_host.process import ChildProcess
from reference_server.backends.python_host import model_code
from reference_server.backends.python_host.inline import InlineInstance
from reference_server.core.cpp import leading_integer
from reference_server.core.errors import ServerError, invalid_arg, unsupported
from reference_server.core.health import Health
from reference_server.core.portability import Portability
from reference_server.core.ports import Clock, Metrics, ModelCalls, ModelInstance, OpenInstance
from reference_server.observability import logs
from reference_server.observability.incidents import ExecutionWatch


class Host(enum.Enum):
    """The kind of host that runs a model."""

    INLINE = "inline"
    PROCESS = "process"


@dataclass(frozen=True, slots=True)
class PythonSettings:
    """The checked settings of `--backend-config=python,...`."""

    host: Host = Host.INLINE
    supervision: Supervision = field(default_factory=Supervision)

    def host_of(self, parameter: str) -> Host:
        """Return a model's host; `parameter` is its EXECUTION_HOST or empty. Raises ServerError."""
        return _parsed_host("EXECUTION_HOST", parameter) if parameter else self.host


#: Map each of Triton's integer settings to its least value and Triton's text for smaller values.
_LEAST = {
    "shm-default-byte-size": (1 << 20, "can't be smaller than 4 MiBs"),  # Triton says 4, means 1
    "shm-growth-byte-size": (1, "can't be smaller than or equal to zero."),
    "stub-timeout-seconds": (1, "can't be smaller than or equal to zero."),
    "thread-pool-size": (1, "can't be less than 1."),
    "shm_message_queue_size": (-(2**63), ""),
}
#: All settings that this server or Triton reads.
PYTHON_SETTINGS = frozenset(
    {"host", "stub-restart", "stub-execution-timeout-seconds", "shm-region-prefix-name", *_LEAST}
)


def python_settings(texts: Mapping[str, str]) -> PythonSettings:
    """Return the checked settings in `texts`.

    Settings that only Triton's processes need are checked as in Triton. Unknown names are ignored.
    Raises ServerError.
    """
    for name, (least, complaint) in _LEAST.items():
        if name in texts and _integer(texts[name]) < least:
            raise invalid_arg(f"{name} {complaint}")
    limit_s = _integer(texts.get("stub-execution-timeout-seconds", "0"))
    if limit_s < 0:
        raise invalid_arg("stub-execution-timeout-seconds can't be smaller than zero.")
    return PythonSettings(
        _parsed_host("host", texts.get("host", Host.INLINE.value)),
        Supervision(_boolean("stub-restart", texts.get("stub-restart", "true")), limit_s or None),
    )


def _integer(text: str) -> int:
    number = leading_integer(text)
    if number is None or not -(2**63) <= number < 2**63:
        raise invalid_arg("stol")  # Triton's text is the name of the C++ function
    return number


def _boolean(name: str, text: str) -> bool:
    if text not in ("true", "false"):
        raise _refusal(name, text, ("true", "false"))
    return text == "true"


def _parsed_host(name: str, text: str) -> Host:
    try:
        return Host(text)
    except ValueError:
        raise _refusal(name, text, [host.value for host in Host]) from None


def _refusal(name: str, text: str, known: Iterable[str]) -> ServerError:
    return invalid_arg(f"Incorrect value for {name}: '{text}', expected one of {', '.join(known)}")


class PythonHosts:
    """Creates instances of Python models on their hosts. Thread-safe.

    Each method raises ServerError if a setting is invalid.

    Args:
        settings: The backend's settings, as on the command line.
        clock: The clock of the instances.
        metrics: The server's metrics.
        executions: A watch on the executions of inline instances.
        portability: Receives a report of each use that tritonserver 2.51 would refuse.
        environments: Finds the models' own Python environments.
    """

    def __init__(
        self,
        settings: Mapping[str, str],
        clock: Clock,
        metrics: Metrics,
        executions: ExecutionWatch | None = None,
        portability: Portability | None = None,
        environments: Environments | None = None,
    ) -> None:
        # Checked at each load: in Triton an invalid value fails the models, not the server.
        self._settings = settings
        self._clock = clock
        self._metrics = metrics
        self._executions = executions
        self._environments = environments or Environments()
        self.portability = portability or Portability()
        if self.portability.strict:
            self._settings = {"stub-restart": "false", **settings}

    def instance(
        self,
        spec: InstanceSpec,
        calls: ModelCalls,
        chosen: str,
        health: Health,
        prepare: Callable[[OpenInstance], None] | None = None,
    ) -> ModelInstance:
        """Return an instance that is not open yet.

        Args:
            spec: The instance's specification.
            calls: The server's operations for BLS requests and model control.
            chosen: The model's EXECUTION_HOST, or an empty string.
            health: Receives the death of the instance's process, and the model's readiness probe.
            prepare: Called with an instance whose process was started again, before the instance
                serves.
        """
        settings = python_settings(self._settings)
        report = partial(self.portability.report, spec.model_name)
        if _host(settings, chosen, spec.environment) is Host.INLINE:
            running = None
            if self._executions is not None:
                running = self._executions.new(spec.name, spec.model_name, spec.model_version)
            return InlineInstance(
                *(spec, self._clock, self._metrics, calls, health, process_advice, running),
                report=report,
            )
        return ProcessInstance(
            *(spec, settings.supervision, self._clock, self._metrics, calls, health),
            processes=partial(ChildProcess, environment=self._environment(spec.environment)),
            prepare=prepare,
            report=report,
        )

    def auto_complete(
        self,
        model_file: Path,
        version_directory: Path,
        model_name: str,
        config: dict[str, Any],
        chosen: str,
        environment: str = "",
    ) -> str:
        """Return the JSON of `config` completed by the model. Blocks as long as the model does.

        `environment` is the path of the model's own environment, or empty.
        """
        if _host(python_settings(self._settings), chosen, environment) is Host.INLINE:
            with logs.speaking(model_name):
                return model_code.auto_complete(
                    model_file, version_directory, model_name, config, process_advice
                )
        return auto_complete_in_process(
            *(model_file, version_directory, model_name, config),
            self._environment(environment),
        )

    def _environment(self, path: str) -> Environment | None:
        """Return the environment at `path`, None if it is empty. Blocks; raises ServerError."""
        return self._environments.get(path) if path else None


#: Texts of library errors whose cause is that models share a process and its threads.
_CURED_BY_A_PROCESS = (
    "main thread",  # signal.signal, set_wakeup_fd, Tk, Matplotlib's windows
    "context has already been set",  # multiprocessing.set_start_method
    "set_num_interop_threads",  # torch, after its first computation
    "more than once per process",  # C extensions, such as NumPy's
    "Duplicated timeseries in CollectorRegistry",  # prometheus_client's registry
)


def process_advice(error: BaseException | None) -> str:
    """Return a hint if an inline model's error would not occur in its own process, else ''."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen and sys.platform == "linux":
        seen.add(id(error))
        if any(sign in _text(error) for sign in _CURED_BY_A_PROCESS):
            return (
                "\nThe model runs on a thread of the server's process, beside other models; this "
                "operation needs a process of its own, as in Triton. Set in its config.pbtxt: "
                'parameters { key: "EXECUTION_HOST" value: { string_value: "process" } }'
            )
        error = error.__cause__ or error.__context__
    return ""


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException:  # the `__str__` of a model's class may raise anything
        return ""


def _host(settings: PythonSettings, chosen: str, environment: str) -> Host:
    host = settings.host_of(chosen)
    if environment:
        if chosen and host is Host.INLINE:
            raise invalid_arg(
                f"EXECUTION_HOST: found '{chosen}' beside {PARAMETER}; expected process, because "
                "another Python cannot run in the server's process. Remove one of them."
            )
        host = Host.PROCESS
    if host is Host.PROCESS and sys.platform != "linux":
        raise unsupported(f"host: found process on {sys.platform}; expected inline")
    return host
