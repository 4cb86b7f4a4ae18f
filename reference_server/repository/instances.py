"""The instances of a model: each where it wants to run, with all that stands around it."""

from __future__ import annotations

from pathlib import Path

from reference_server.backends.hosts import PythonHosts
from reference_server.backends.instances import InstanceSpec, with_reshaped_outputs
from reference_server.config.scheduling import InstanceConfig
from reference_server.backends.python_host.inline import InstanceSpec
from reference_server.backends.reshape import with_reshaped_outputs
from reference_server.config.scheduler_settings import InstanceConfig
from reference_server.config.schema import ModelConfig
from reference_server.core.health import Health
from reference_server.core.ports import Clock, ModelInstance
from reference_server.observability.model_statistics import ModelStatistics
from reference_server.repository.calls import Calls
from reference_server.scheduling.deadlocks import Crew, Member
from reference_server.scheduling.execution import Executor
from reference_server.scheduling.warmup import WarmedInstance, Warmup


class InstanceMaker:
    """Makes instances, which are not open yet. Any thread. `calls` is what models ask with."""

    def __init__(self, hosts: PythonHosts, calls: Calls, clock: Clock) -> None:
        self._hosts = hosts
        self._calls = calls
        self._clock = clock

    def make(
        self,
        config: ModelConfig,
        version: int,
        folder: Path,
        statistics: ModelStatistics,
        crew: Crew,
        health: Health,
    ) -> list[ModelInstance]:
        """All instances of the model in `folder`. Raises ServerError for a wrong setting."""
        warm_up = None
        if config.warmup:
            executor = Executor(config.name, version, statistics, self._clock)
            warm_up = Warmup(config.warmup, config.signature, folder, executor, self._clock)
        instances = [
            with_reshaped_outputs(
                self._hosts.instance(
                    _spec(config, version, folder, instance),
                    self._calls.of(Member(crew, instance.name)),
                    config.execution_host,
                    health,
                    warm_up,
                ),
                config.signature,
            )
            for instance in config.instances
        ]
        if warm_up is None:
            return instances
        return [WarmedInstance(instance, warm_up) for instance in instances]


def _spec(
    config: ModelConfig, version: int, folder: Path, instance: InstanceConfig
) -> InstanceSpec:
    sequences = config.sequence_batching
    return InstanceSpec(
        name=instance.name,
        kind=instance.kind,
        model_name=config.name,
        model_version=version,
        model_directory=folder,
        version_directory=folder / str(version),
        model_filename=config.model_filename,
        config_json=config.json,
        output_names=frozenset(output.name for output in config.signature.outputs),
        is_iterative=sequences is not None and sequences.iterative,
        state_names=frozenset(state.output_name for state in sequences.states)
        if sequences is not None
        else frozenset(),
        is_decoupled=config.decoupled,
    )
