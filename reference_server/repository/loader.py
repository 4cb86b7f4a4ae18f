"""Loads one version of a model: configuration, instances, scheduler."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from tritonclient.grpc.model_config_pb2 import ModelConfig as ConfigProto

from reference_server.backends import environments
from reference_server.backends.hosts import PythonHosts
from reference_server.config import check, check_portable, complete, json_form, pbtxt, schema
from reference_server.config.scheduler_settings import ControlKind
from reference_server.config.schema import ModelConfig
from reference_server.core.errors import internal, invalid_arg, not_found
from reference_server.core.health import Health
from reference_server.core.paths import refuse_links_out
from reference_server.core.portability import ROWS, Portability
from reference_server.core.ports import Clock, LoopIterations, Metrics, Scheduler
from reference_server.core.rules import Correlation, RequestRules
from reference_server.observability.incidents import ExecutionWatch
from reference_server.observability.latency_summaries import (
    FIRST_RESPONSES,
    FirstResponses,
    LatencySummaries,
)
from reference_server.observability.model_statistics import ModelStatistics
from reference_server.options import MAX_BATCH_SIZE, LatencyMetrics, ServerOptions
from reference_server.repository.bls import BlsCalls
from reference_server.repository.model_files import (
    SHIPPED,
    is_own_code,
    labels_of,
    locate_code,
    use_stub,
)
from reference_server.repository.model_folders import ModelFolder
from reference_server.repository.schedulers import (
    InstanceMaker,
    kept_and_added,
    to_steps,
    work_queue,
)
from reference_server.repository.versions import ServedModel
from reference_server.scheduling.deadlocks import InstanceGroup
from reference_server.scheduling.ensemble import EnsembleScheduler
from reference_server.scheduling.instance_scheduler import InstanceScheduler
from reference_server.scheduling.rate_limiter import RateLimiter
from reference_server.scheduling.response_cache import CachingScheduler, ResponseCache

log = logging.getLogger(__name__)

#: Returns a loaded model by name and version. Raises ServerError if the model is not loaded.
Find = Callable[[str, int], ServedModel]


class ModelLoader:
    """Creates a ServedModel from a model's folder. Thread-safe; loading blocks.

    Args:
        clock: The source of all times.
        metrics: Creates the metric families of models.
        options: The server's options.
        iterations: See `LoopIterations`; None without an event loop.
        cache: The response cache, for models that enable it.
        executions: Watches the executions of inline models.
    """

    def __init__(
        self,
        clock: Clock,
        metrics: Metrics,
        options: ServerOptions,
        iterations: LoopIterations | None = None,
        cache: ResponseCache | None = None,
        executions: ExecutionWatch | None = None,
    ) -> None:
        self._options = options
        self._latencies = LatencyMetrics()
        if options.metrics is not None:
            self._latencies = options.metrics.latencies
        self.profile = profile = options.profile
        limits = options.rate_limit
        self._limiter = None if limits is None else RateLimiter(limits.limits)
        self._iterations = iterations
        self._clock = clock
        self.portability = Portability(strict=options.strict_portable)
        self._hosts = PythonHosts(
            options.python_backend, clock, metrics, executions, self.portability
        )
        self._cache = cache
        self._order = itertools.count()
        self._resizing = threading.Lock()
        #: The BLS calls of loaded models; the server connects this object after the first load.
        self.calls = BlsCalls(clock, profile)
        self._instances = InstanceMaker(self._hosts, self.calls, clock, profile)

    def read_config(self, folder: ModelFolder) -> ConfigProto:
        """Return the completed configuration of a folder, without auto-completion by the model.

        Raises ServerError in the cases in which Triton's poll of the repository fails.
        """
        path = self._config_file(folder)
        if not self._options.auto_complete_config and not path.exists():
            raise internal(f"failed to open text file for read {path}: No such file or directory")
        return self.complete(folder, pbtxt.read(path))

    def _config_file(self, folder: ModelFolder) -> Path:
        return pbtxt.locate(folder.path, self._options.model_config_name)

    def complete(self, folder: ModelFolder, config: ConfigProto) -> ConfigProto:
        """Complete and check a configuration for the model in `folder`, and return it.

        Raises ServerError if a check fails.
        """
        config.name = config.name or folder.name
        complete.complete(config, folder.path)
        check.check_polled(config, self.profile)
        if not self._options.auto_complete_config:
            check.check_tensors(config, self.profile)
        check.check_directory(config, folder.name)
        return config

    def load(
        self,
        folder: ModelFolder,
        source: ConfigProto,
        version: int,
        find: Find,
    ) -> ServedModel:
        """Load one version of a model. Blocks.

        Args:
            folder: The model's folder.
            source: The completed configuration.
            version: The version to load.
            find: Returns the loaded models of an ensemble's steps; the ensemble keeps references.

        Raises:
            ServerError: The version cannot be loaded.
        """
        start_ns = self._clock.monotonic_ns()
        if not self._options.outside_links:
            refuse_links_out(folder.path)
        proto = ConfigProto()
        proto.CopyFrom(source)
        model_file, environment = self._complete_by_model(proto, folder, version)
        steps = [
            find(step.model_name, step.model_version) for step in proto.ensemble_scheduling.step
        ]
        if proto.platform == "ensemble":
            # Derived from the models; the ensemble's own setting is ignored.
            proto.model_transaction_policy.decoupled = any(
                model.config.decoupled for model in steps
            )
        check.check_response_cache(proto)
        config = ModelConfig.from_proto(proto, newer_fields=self.profile.newer_config_fields)
        if model_file is not None and not config.is_python:
            config = replace(config, model_filename=str(model_file.absolute()))
        config = replace(config, environment=environment)
        labels = labels_of(config, folder.path, steps)
        statistics = self._new_statistics(config, version)
        group = (
            None if config.is_ensemble else InstanceGroup(config.name, len(config.instance_names))
        )
        health = Health([model.health for model in steps])
        scheduler = self._scheduler(config, version, folder.path, steps, statistics, group, health)
        if folder.temporary is not None:
            folder.temporary.hold()
        return ServedModel(
            config,
            version,
            self._rules(config),
            scheduler,
            statistics,
            labels,
            next(self._order),
            folder.temporary,
            group=group,
            health=health,
            running=dict(enumerate(config.instances)),
            # As in Triton, ensembles have no load time because they have no instances.
            load_ns=0 if group is None else self._clock.monotonic_ns() - start_ns,
            first_responses=self._first_responses(config),
            namespace=folder.id.namespace,
            report=partial(self.portability.report, config.name),
        )

    def _first_responses(self, config: ModelConfig) -> FirstResponses | None:
        for family in config.buckets:
            if family != FIRST_RESPONSES.name:
                log.warning(
                    "Metric family '%s' in 'metric_identifier' is not a customizable metric in "
                    "Triton core.",
                    family,
                )
        if not (self._latencies.histograms and self.profile.newer_metrics):
            return None
        return FirstResponses(self._clock, config.buckets.get(FIRST_RESPONSES.name))

    def _rules(self, config: ModelConfig) -> RequestRules:
        sequences = config.sequence_batching
        controls = () if sequences is None else sequences.controls
        ids = (control for control in controls if control.kind is ControlKind.CORRID)
        control = next(ids, None)
        return RequestRules(
            config.signature,
            reads_strings=not config.is_ensemble,
            profile=self.profile,
            correlation=None if control is None else Correlation(control.name, control.datatype),
        )

    def change_instances(
        self, served: ServedModel, folder: ModelFolder, source: ConfigProto
    ) -> ServedModel:
        """Change the instances of a serving version to those in `source`, and return the version.

        Raises ServerError if a new instance cannot be opened; then nothing has changed.
        """
        assert served.group is not None
        proto = ConfigProto.FromString(served.config.proto)
        del proto.instance_group[:]
        proto.instance_group.extend(source.instance_group)
        check.check_given(proto)
        check.check_loaded(proto, self.profile)
        config = replace(
            ModelConfig.from_proto(proto),
            model_filename=served.config.model_filename,
            environment=served.config.environment,
        )
        kept, added = kept_and_added(served.running, config.instances)
        scheduler = _instance_scheduler(served)
        assert scheduler is not None
        group, health = served.group, served.health
        instances = self._instances.make(
            config, served.version, folder.path, served.statistics, group, health, added
        )

        def left(name: str, was_last: bool) -> None:
            with self._resizing:
                group.size -= 1
            if was_last:
                health.forget(name)

        numbers = scheduler.change(instances, served.running.keys() - kept.keys(), added, left)
        with self._resizing:
            group.size += len(numbers)
        return replace(served, config=config, running=kept | dict(zip(numbers, added, strict=True)))

    def _complete_by_model(
        self, proto: ConfigProto, folder: ModelFolder, version: int
    ) -> tuple[Path | None, str]:
        """Complete `proto` by the model's code and check it.

        Returns the code's file, if any, and the path of the model's own Python environment or "".
        """
        model_file: Path | None
        if (function := self._options.stub_models.get(folder.name)) is not None:
            model_file = use_stub(proto, function)
        else:
            model_file = locate_code(
                proto, folder.path / str(version), self._options.backend_directory
            )
        check.check_given(proto)
        environment = ""
        if not (model_file is None or is_own_code(model_file)):
            environment = _environment(proto, folder)
        if model_file is not None and self._options.auto_complete_config:
            config = json_form.as_dict(proto)
            if model_file == SHIPPED:
                self._add_settings(config)
            completed = self._hosts.auto_complete(
                model_file,
                folder.path / str(version),
                folder.name,
                config,
                schema.parameter(proto, "EXECUTION_HOST"),
                environment,
            )
            adopted = complete.adopt_auto_completed(proto, completed)
            if not adopted and not self._config_file(folder).exists():
                raise not_found(f"model configuration is not provided for model '{folder.name}'")
            check.check_polled(proto, self.profile)
        check.check_loaded(proto, self.profile)
        self._check_portable(proto, folder.path)
        return model_file, environment

    def _check_portable(self, proto: ConfigProto, folder: Path) -> None:
        """Report settings that tritonserver 2.51 does not support. Raises ServerError if strict."""
        for key, detail, _ in check_portable.findings(proto, folder):
            self.portability.report(proto.name, key, detail)
            if self.portability.strict:
                raise invalid_arg(f"--strict-portable: {ROWS[key].text}: {detail}")

    def _add_settings(self, config: dict[str, Any]) -> None:
        """Add settings for Triton's own backends. The served configuration has none of them."""
        sizes = self._options.max_batch_sizes
        size = sizes.get(config["backend"], sizes.get(""))
        if size is not None:
            config["parameters"][MAX_BATCH_SIZE] = {"string_value": size}

    def _new_statistics(self, config: ModelConfig, version: int) -> ModelStatistics:
        summaries = None
        if self._latencies.summaries:
            summaries = LatencySummaries(
                self._latencies.quantiles, self._clock, cached=config.caches_responses
            )
        return ModelStatistics(config.name, version, self._clock, summaries)

    def _scheduler(
        self,
        config: ModelConfig,
        version: int,
        folder: Path,
        steps: Sequence[ServedModel],
        statistics: ModelStatistics,
        group: InstanceGroup | None,
        health: Health,
    ) -> Scheduler:
        scheduler: Scheduler
        if group is None:
            models = [model.config for model in steps]
            dispatch = to_steps(config, steps, self._clock)
            scheduler = EnsembleScheduler(
                config, version, models, dispatch, statistics, self._clock
            )
        else:
            instances = self._instances.make(
                config, version, folder, statistics, group, health, config.instances
            )
            limiter = self._limiter
            running = InstanceScheduler(
                config.name,
                version,
                work_queue(config, folder),
                instances,
                statistics,
                self._clock,
                limiter,
                limiter.add(config.instances) if limiter is not None else (),
                self._iterations,
            )
            running.open()
            scheduler = running
        if self._cache is not None and config.caches_responses:
            scheduler = CachingScheduler(
                scheduler, self._cache, config.signature, version, statistics, self._clock
            )
        return scheduler


def join_removed(served: ServedModel) -> None:
    """Wait until the removed instances of a version are closed, except instances with sequences."""
    scheduler = _instance_scheduler(served)
    if scheduler is not None:
        scheduler.join_removed()


def _instance_scheduler(served: ServedModel) -> InstanceScheduler | None:
    scheduler = served.scheduler
    if isinstance(scheduler, CachingScheduler):
        scheduler = scheduler.inner
    return scheduler if isinstance(scheduler, InstanceScheduler) else None


def _environment(proto: ConfigProto, folder: ModelFolder) -> str:
    """Return the path of a model's own Python environment, or ""."""
    value = schema.parameter(proto, environments.PARAMETER)
    path = environments.expanded(value, folder.path)
    if path:
        log.info("Using Python execution env %s", path)
        log.info("model '%s' runs in processes of its own: it has an environment", proto.name)
    return path
