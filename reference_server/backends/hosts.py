"""The choice of a Python model's host: in the server's process, or in one of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from reference_server.backends.process_host import completing
from reference_server.backends.process_host.instance import ProcessInstance
from reference_server.backends.process_host.settings import Host, PythonSettings, read
from reference_server.backends.python_host import inline
from reference_server.backends.python_host.inline import InlineInstance, InstanceSpec
from reference_server.core.clock import Clock
from reference_server.core.errors import unsupported
from reference_server.core.health import Health
from reference_server.core.ports import Metrics, ModelCalls, ModelInstance, OpenInstance
from reference_server.observability import printing


class PythonHosts:
    """Makes instances of Python models where each wants to run. Any thread.

    `given` are the backend's settings; each method raises ServerError if one of them is wrong.
    `chosen` is what a model's own configuration says of its host, empty if nothing.
    """

    def __init__(self, given: Mapping[str, str], clock: Clock, metrics: Metrics) -> None:
        self._given = given
        self._clock = clock
        self._metrics = metrics

    def instance(
        self,
        spec: InstanceSpec,
        calls: ModelCalls,
        chosen: str,
        health: Health,
        prepare: Callable[[OpenInstance], None] | None = None,
    ) -> ModelInstance:
        """An instance, not open yet.

        `health` hears of it if its process dies, or if its model tells whether it is ready.
        `prepare` is for the one that takes the place of an instance whose process died.
        """
        settings = read(self._given)
        if _host(settings, chosen) is Host.INLINE:
            return InlineInstance(spec, self._clock, self._metrics, calls, health)
        return ProcessInstance(
            spec, settings.supervision, self._clock, self._metrics, calls, health, prepare=prepare
        )

    def auto_complete(
        self, model_file: Path, model_name: str, config: dict[str, Any], chosen: str
    ) -> dict[str, Any]:
        """`config` as the model itself completes it. Blocks for as long as the model does."""
        if _host(read(self._given), chosen) is Host.INLINE:
            with printing.speaking(model_name):
                return inline.auto_complete(model_file, model_name, config)
        return completing.auto_complete(model_file, model_name, config)


def _host(settings: PythonSettings, chosen: str) -> Host:
    host = settings.host_of(chosen)
    if host is Host.PROCESS and sys.platform != "linux":
        raise unsupported("models run in processes of their own on Linux alone; use host=inline")
    return host
