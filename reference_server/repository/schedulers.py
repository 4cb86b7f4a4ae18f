"""Creates the instances and the queue of a model version, and the dispatch of ensembles."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from reference_server.backends.hosts import PythonHosts
from reference_server.backends.instances import InstanceSpec, with_reshaped_outputs
from reference_server.config.scheduler_settings import InstanceConfig
from reference_server.config.schema import ModelConfig
from reference_server.core.errors import invalid_arg
from reference_server.core.health import Health
from reference_server.core.ports import Clock, Dispatch, ModelInstance
from reference_server.core.profiles import TritonProfile
from reference_server.core.request import InferRequest
from reference_server.observability.model_statistics import ModelStatistics
from reference_server.repository.bls import BlsCalls
from reference_server.repository.model_files import read_initial_states
from reference_server.repository.versions import ServedModel
from reference_server.scheduling.deadlocks import InstanceGroup, Member
from reference_server.scheduling.dynamic_batcher import DynamicBatcher
from reference_server.scheduling.execution import BatchExecutor
from reference_server.scheduling.policy_batcher import PolicyBatcher
from reference_server.scheduling.response_order import OrderedQueue
from reference_server.scheduling.sequence_strategies import sequence_queue
from reference_server.scheduling.warmup import WarmedInstance, Warmup
from reference_server.scheduling.work_queue import Fifo, WorkQueue

#: Characters that names of models and instances must not contain: Triton builds a command from the
#: names.
_SHELL_CHARACTERS = re.compile(r"""[;|&$`<>()\[\]{}\\"'*?~#!]""")


class InstanceMaker:
    """Creates instances, not yet open. Thread-safe. `calls` are the models' BLS calls."""

    def __init__(
        self, hosts: PythonHosts, calls: BlsCalls, clock: Clock, profile: TritonProfile
    ) -> None:
        self._profile = profile
        self._hosts = hosts
        self._calls = calls
        self._clock = clock

    def make(
        self,
        config: ModelConfig,
        version: int,
        folder: Path,
        statistics: ModelStatistics,
        group: InstanceGroup,
        health: Health,
        wanted: Sequence[InstanceConfig],
    ) -> list[ModelInstance]:
        """Return the `wanted` instances of the model in `folder`.

        Raises ServerError if a name is invalid.
        """
        report = partial(self._hosts.portability.report, config.name)
        names = [config.name, *(instance.name for instance in wanted)]
        if self._profile.newer_name_checks and any(map(_SHELL_CHARACTERS.search, names)):
            raise invalid_arg("Invalid stub name: contains invalid characters")
        warm_up = None
        if config.warmup:
            executor = BatchExecutor(config.name, version, statistics, self._clock)
            warm_up = Warmup(config.warmup, config.signature, folder, executor, self._clock)
        instances = [
            with_reshaped_outputs(
                self._hosts.instance(
                    _spec(
                        config,
                        version,
                        folder,
                        instance,
                        has_newer_api=self._profile.newer_model_api,
                        strict_portable=self._hosts.portability.strict,
                    ),
                    self._calls.for_instance(Member(group, instance.name), report),
                    config.execution_host,
                    health,
                    warm_up,
                ),
                config.signature,
            )
            for instance in wanted
        ]
        if warm_up is None:
            return instances
        return [WarmedInstance(instance, warm_up) for instance in instances]


def _spec(
    config: ModelConfig,
    version: int,
    folder: Path,
    instance: InstanceConfig,
    *,
    has_newer_api: bool,
    strict_portable: bool,
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
        has_newer_api=has_newer_api,
        strict_portable=strict_portable,
        environment=config.environment,
    )


def kept_and_added(
    running: Mapping[int, InstanceConfig], wanted: Sequence[InstanceConfig]
) -> tuple[dict[int, InstanceConfig], list[InstanceConfig]]:
    """Return the `running` instances to keep, by number, and the `wanted` instances to add.

    As in Triton, a running instance is kept, with its name, for any wanted instance with the same
    settings.
    """
    unmatched = dict(running)
    added: list[InstanceConfig] = []
    for instance in wanted:
        equal = (
            number for number, known in unmatched.items() if known.settings == instance.settings
        )
        if (number := next(equal, None)) is None:
            added.append(instance)
        else:
            del unmatched[number]
    return {number: known for number, known in running.items() if number not in unmatched}, added


def to_steps(config: ModelConfig, steps: Sequence[ServedModel], clock: Clock) -> Dispatch:
    """Return a function that sends requests to the versions with which the ensemble was loaded.

    These versions finish requests in flight, even if models are reloaded or unloaded.
    """
    models = {
        (step.model_name, step.model_version): model
        for step, model in zip(config.ensemble, steps, strict=True)
    }

    def dispatch(request: InferRequest) -> None:
        request.received_ns = clock.monotonic_ns()
        models[request.model_name, request.model_version].infer(request)

    return dispatch


def work_queue(config: ModelConfig, folder: Path) -> WorkQueue:
    """Return the queue for a model's instances; `folder` contains the initial states."""
    sequences = config.sequence_batching
    if sequences is not None:
        return sequence_queue(config, sequences, read_initial_states(sequences, folder))
    batching = config.dynamic_batching
    if batching is None:
        return Fifo()
    rows = config.signature.max_batch_size
    work: WorkQueue
    # Usually there are no priority levels and queue limits: then requests are neither reordered
    # nor refused, and the simpler and faster batcher is sufficient.
    if batching.is_free:
        work = DynamicBatcher(
            rows,
            batching.preferred_batch_sizes,
            batching.max_queue_delay_us * 1000,
            len(config.instances),
        )
    else:
        compares = any(x.has_free_dims and not x.ragged for x in config.signature.inputs)
        work = PolicyBatcher(rows, batching, compares_shapes=compares)
    return OrderedQueue(work) if batching.preserve_ordering else work
