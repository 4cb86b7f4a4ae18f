"""Loading one model: configuration, instances, scheduler. Blocks; safe from any thread."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from tritonclient.grpc.model_config_pb2 import ModelConfig as ConfigProto

from reference_server.backends.hosts import PythonHosts
from reference_server.backends.python_host.inline import InstanceSpec
from reference_server.backends.reshape import with_reshaped_outputs
from reference_server.config import check, check_extras, complete, pbtxt, render, schema
from reference_server.config.scheduling import InstanceConfig
from reference_server.config.schema import ModelConfig
from reference_server.core.clock import Clock
from reference_server.core.errors import internal, invalid_arg, not_found
from reference_server.core.health import Health
from reference_server.core.ports import Dispatch, Metrics, Scheduler
from reference_server.core.request import InferRequest
from reference_server.core.rules import RequestRules
from reference_server.observability.latencies import LatencySummaries
from reference_server.observability.statistics import ModelStatistics
from reference_server.options import BACKEND_DIRECTORY, Quantile
from reference_server.repository import code
from reference_server.repository.calls import Calls
from reference_server.repository.initial_states import read_initial_states
from reference_server.repository.scan import ModelFolder
from reference_server.repository.served import ServedModel
from reference_server.scheduling.batcher import DynamicBatcher
from reference_server.scheduling.cache import CachingScheduler
from reference_server.scheduling.ensemble import EnsembleScheduler
from reference_server.scheduling.execution import Executor
from reference_server.scheduling.instances import InstanceScheduler
from reference_server.scheduling.ordering import OrderedQueue
from reference_server.scheduling.policy_batcher import PolicyBatcher
from reference_server.scheduling.rate_limiter import RateLimiter
from reference_server.scheduling.response_store import ResponseCache
from reference_server.scheduling.sequence.build import sequence_queue
from reference_server.scheduling.waits import Crew, Member
from reference_server.scheduling.warmup import WarmedInstance
from reference_server.scheduling.work import Fifo, WorkQueue

log = logging.getLogger(__name__)

#: A loaded model by name and version. Raises ServerError if there is none.
Find = Callable[[str, int], ServedModel]


class ModelLoader:
    """Turns a model's folder into a ServedModel.

    `metrics` is where models get families of their own, `cache` what those use that ask for it.
    With `quantiles` there are summaries of latencies. In `backend_directory` are the Python-based
    backends; `python_backend` are the settings of the one that runs them all. Configurations that
    are called `config_name` are preferred.
    """

    def __init__(
        self,
        clock: Clock,
        metrics: Metrics,
        *,
        auto_complete_config: bool,
        cache: ResponseCache | None = None,
        quantiles: Sequence[Quantile] = (),
        python_backend: Mapping[str, str] = MappingProxyType({}),
        backend_directory: Path = BACKEND_DIRECTORY,
        config_name: str = "",
        limiter: RateLimiter | None = None,
    ) -> None:
        self._limiter = limiter
        self._clock = clock
        self._hosts = PythonHosts(python_backend, clock, metrics)
        self._auto_completes = auto_complete_config
        self._backend_directory = backend_directory
        self._config_name = config_name
        self._cache = cache
        self._quantiles = quantiles
        self._order = itertools.count()
        #: What the loaded models ask of the server; to be connected once it is ready.
        self.calls = Calls()

    def read_config(self, folder: ModelFolder) -> ConfigProto:
        """The completed configuration of a folder, before the model itself is asked.

        Raises ServerError where Triton's poll of the repository fails.
        """
        path = pbtxt.locate(folder.path, self._config_name)
        if not self._auto_completes and not path.exists():
            raise internal(f"failed to open text file for read {path}: No such file or directory")
        return self.complete(folder, pbtxt.read(path))

    def complete(self, folder: ModelFolder, config: ConfigProto) -> ConfigProto:
        """`config`, completed and checked, as if it had stood in the folder. Raises ServerError."""
        config.name = config.name or folder.name
        complete.complete(config, folder.path)
        check.check_polled(config, folder.name)
        if not self._auto_completes:
            check.check_tensors(config)
        return config

    def load(
        self,
        folder: ModelFolder,
        polled: ConfigProto,
        version: int,
        find: Find,
        statistics: ModelStatistics | None = None,
    ) -> ServedModel:
        """One version, ready to serve. Raises ServerError with the reason if it cannot be.

        `find` gives the loaded models of an ensemble's steps, which it then holds on to.
        `statistics` are those of the version that this one takes the place of, if it is the same
        model on other instances.
        """
        proto = ConfigProto()
        proto.CopyFrom(polled)
        version_folder = folder.path / str(version)
        model_file = code.locate(proto, version_folder, self._backend_directory)
        if model_file is not None and self._auto_completes:
            adopted = complete.adopt_auto_completed(
                proto,
                self._hosts.auto_complete(
                    model_file, folder.name, render.as_dict(proto), schema.execution_host(proto)
                ),
            )
            if not adopted and not pbtxt.locate(folder.path, self._config_name).exists():
                raise not_found(f"model configuration is not provided for model '{folder.name}'")
            check.check_polled(proto, folder.name)
        check.check_loaded(proto)
        if proto.platform == "ensemble":
            # Whatever the file says: an ensemble answers as often as its models do.
            proto.model_transaction_policy.decoupled = any(
                find(step.model_name, step.model_version).config.decoupled
                for step in proto.ensemble_scheduling.step
            )
        check_extras.check_response_cache(proto)
        config = ModelConfig.from_proto(proto)
        if model_file is not None and not config.is_python:
            config = replace(config, model_filename=str(model_file.absolute()))
        labels = {**_labels_of_steps(config, find), **_read_labels(config, folder.path)}
        statistics = statistics or self._new_statistics(config, version)
        crew = None if config.is_ensemble else Crew(config.name, len(config.instance_names))
        health = Health(
            [find(step.model_name, step.model_version).health for step in config.ensemble]
        )
        scheduler = self._scheduler(
            config, folder, version_folder, version, find, statistics, crew, health
        )
        if self._cache is not None and config.caches_responses:
            scheduler = CachingScheduler(
                scheduler, self._cache, config.signature, version, statistics, self._clock
            )
        if folder.temporary is not None:
            folder.temporary.hold()
        return ServedModel(
            config,
            version,
            RequestRules(config.signature, reads_strings=not config.is_ensemble),
            scheduler,
            statistics,
            labels,
            next(self._order),
            folder.temporary,
            crew=crew,
            health=health,
        )

    def _new_statistics(self, config: ModelConfig, version: int) -> ModelStatistics:
        cached = config.caches_responses
        summaries = (
            LatencySummaries(self._quantiles, self._clock, cached=cached)
            if self._quantiles
            else None
        )
        return ModelStatistics(config.name, version, self._clock, summaries)

    def _scheduler(
        self,
        config: ModelConfig,
        folder: ModelFolder,
        version_folder: Path,
        version: int,
        find: Find,
        statistics: ModelStatistics,
        crew: Crew | None,
        health: Health,
    ) -> Scheduler:
        if crew is None:
            steps = [find(step.model_name, step.model_version) for step in config.ensemble]
            return EnsembleScheduler(
                config,
                version,
                [model.config for model in steps],
                _to_steps(config, steps, self._clock),
                statistics,
                self._clock,
            )
        instances = [
            with_reshaped_outputs(
                self._hosts.instance(
                    _spec(config, folder, version_folder, version, instance),
                    self.calls.of(Member(crew, instance.name)),
                    config.execution_host,
                    health,
                ),
                config.signature,
            )
            for instance in config.instances
        ]
        if config.warmup:
            executor = Executor(config.name, version, statistics, self._clock)
            instances = [
                WarmedInstance(
                    *(instance, config.warmup, config.signature, folder.path),
                    *(executor, self._clock),
                )
                for instance in instances
            ]
        scheduler = InstanceScheduler(
            config.name,
            version,
            _work_queue(config, folder.path),
            instances,
            statistics,
            self._clock,
            self._limiter,
            self._limiter.add(config.instances) if self._limiter is not None else (),
        )
        scheduler.open()
        return scheduler


def _to_steps(config: ModelConfig, steps: Sequence[ServedModel], clock: Clock) -> Dispatch:
    """Sends an ensemble's requests to the very models that it was loaded with.

    So a request that is on its way is finished by these, whatever is loaded or unloaded meanwhile.
    """
    models = {
        (step.model_name, step.model_version): model
        for step, model in zip(config.ensemble, steps, strict=True)
    }

    def dispatch(request: InferRequest) -> None:
        request.received_ns = clock.monotonic_ns()
        models[request.model_name, request.model_version].infer(request)

    return dispatch


def _work_queue(config: ModelConfig, model_folder: Path) -> WorkQueue:
    sequences = config.sequence_batching
    if sequences is not None:
        return sequence_queue(config, sequences, read_initial_states(sequences, model_folder))
    batching = config.dynamic_batching
    if batching is None:
        return Fifo()
    rows = config.signature.max_batch_size
    work: WorkQueue
    if batching.is_free:
        work = DynamicBatcher(
            rows,
            batching.preferred_batch_sizes,
            batching.max_queue_delay_us * 1000,
            len(config.instances),
        )
    else:
        work = PolicyBatcher(rows, batching)
    return OrderedQueue(work) if batching.preserve_ordering else work


def _spec(
    config: ModelConfig,
    folder: ModelFolder,
    version_folder: Path,
    version: int,
    instance: InstanceConfig,
) -> InstanceSpec:
    sequences = config.sequence_batching
    return InstanceSpec(
        name=instance.name,
        kind=instance.kind,
        model_name=config.name,
        model_version=version,
        model_directory=folder.path,
        version_directory=version_folder,
        model_filename=config.model_filename,
        config_json=config.json,
        output_names=frozenset(output.name for output in config.signature.outputs),
        is_iterative=sequences is not None and sequences.iterative,
        state_names=frozenset(state.output_name for state in sequences.states)
        if sequences is not None
        else frozenset(),
        is_decoupled=config.decoupled,
    )


def _labels_of_steps(config: ModelConfig, find: Find) -> dict[str, tuple[str, ...]]:
    """The labels of an ensemble's outputs, as the models have them that make these outputs."""
    labels: dict[str, tuple[str, ...]] = {}
    for step in config.ensemble:
        made = find(step.model_name, step.model_version).labels
        labels.update(
            {step.outputs[name]: lines for name, lines in made.items() if name in step.outputs}
        )
    return labels


def _read_labels(config: ModelConfig, folder: Path) -> dict[str, tuple[str, ...]]:
    labels: dict[str, tuple[str, ...]] = {}
    for output in config.signature.outputs:
        if output.labels_file:
            path = folder / output.labels_file
            try:
                # Not splitlines: Triton ends a label at a line feed and nowhere else.
                labels[output.name] = tuple(path.read_bytes().decode().split("\n"))
            except FileNotFoundError as error:
                raise internal(
                    f"failed to open text file for read {path}: No such file or directory"
                ) from error
            except (OSError, UnicodeDecodeError) as error:
                raise invalid_arg(f"failed to read label file {path}: {error}") from error
    return labels
