"""Loads one version of a model: configuration, instances, scheduler."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tritonclient.grpc.model_config_pb2 import ModelConfig as ConfigProto

from reference_server.backends.hosts import PythonHosts
from reference_server.config import check, complete, json_form, pbtxt, schema
from reference_server.config.scheduler_settings import ControlKind
from reference_server.config.schema import ModelConfig
from reference_server.core.errors import internal, not_found
from reference_server.core.health import Health
from reference_server.core.paths import refuse_links_out
from reference_server.core.ports import Clock, LoopIterations, Metrics, Scheduler
from reference_server.core.profiles import V2_51, TritonProfile
from reference_server.core.rules import Correlation, RequestRules
from reference_server.observability.incidents import ExecutionWatch
from reference_server.observability.latency_summaries import (
    FIRST_RESPONSES,
    FirstResponses,
    LatencySummaries,
)
from reference_server.observability.model_statistics import ModelStatistics
from reference_server.options import BACKEND_DIRECTORY, MAX_BATCH_SIZE, Quantile
from reference_server.repository.bls import BlsCalls
from reference_server.repository.model_files import SHIPPED, labels_of, locate_code, use_stub
from reference_server.repository.model_folders import ModelFolder
from reference_server.repository.schedulers import (
    InstanceMaker,
    ensemble_scheduler,
    instance_scheduler,
    kept_and_added,
)
from reference_server.repository.versions import ServedModel
from reference_server.scheduling.deadlocks import InstanceGroup
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
        iterations: The iterations of the event loop that submits requests, if any.
        auto_complete_config: Whether models complete their configuration.
        cache: The response cache, for models that enable it.
        quantiles: The quantiles of latency summaries; empty for none.
        python_backend: The settings of the Python backend.
        max_batch_sizes: The default maximum batch size by backend; "" for all other backends.
        stubs: The functions (MODULE:FUNCTION) that replace models, by model name.
        backend_directory: The folder of Python-based backends.
        config_name: The name of the preferred configuration in a model's folder.
        limiter: The rate limiter, if enabled.
        profile: The Triton release to imitate.
        histograms: Whether there are histograms of first response times.
        executions: Watches the executions of inline models.
        outside_links: Whether a model's files may be links to files outside its folder.
    """

    def __init__(
        self,
        clock: Clock,
        metrics: Metrics,
        iterations: LoopIterations | None = None,
        *,
        auto_complete_config: bool,
        cache: ResponseCache | None = None,
        quantiles: Sequence[Quantile] = (),
        python_backend: Mapping[str, str] = MappingProxyType({}),
        max_batch_sizes: Mapping[str, str] = MappingProxyType({}),
        stubs: Mapping[str, str] = MappingProxyType({}),
        backend_directory: Path = BACKEND_DIRECTORY,
        config_name: str = "",
        limiter: RateLimiter | None = None,
        profile: TritonProfile = V2_51,
        histograms: bool = False,
        executions: ExecutionWatch | None = None,
        outside_links: bool = True,
    ) -> None:
        self._outside_links = outside_links
        self._histograms = histograms and profile.newer_metrics
        self.profile = profile
        self._limiter = limiter
        self._iterations = iterations
        self._clock = clock
        self._hosts = PythonHosts(python_backend, clock, metrics, executions)
        self._auto_completes = auto_complete_config
        self._max_batch_sizes = max_batch_sizes
        self._stubs = stubs
        self._backend_directory = backend_directory
        self._config_name = config_name
        self._cache = cache
        self._quantiles = quantiles
        self._order = itertools.count()
        #: The BLS calls of loaded models; the server connects it when it is ready.
        self.calls = BlsCalls(clock, profile)
        self._instances = InstanceMaker(self._hosts, self.calls, clock, profile)

    def read_config(self, folder: ModelFolder) -> ConfigProto:
        """Return the completed configuration of a folder, without auto-completion by the model.

        Raises ServerError in the cases in which Triton's poll of the repository fails.
        """
        path = pbtxt.locate(folder.path, self._config_name)
        if not self._auto_completes and not path.exists():
            raise internal(f"failed to open text file for read {path}: No such file or directory")
        return self.complete(folder, pbtxt.read(path))

    def complete(self, folder: ModelFolder, config: ConfigProto) -> ConfigProto:
        """Complete and check a configuration for the model in `folder`, and return it.

        Raises ServerError if a check fails.
        """
        config.name = config.name or folder.name
        complete.complete(config, folder.path)
        check.check_polled(config, self.profile)
        if not self._auto_completes:
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
        if not self._outside_links:
            refuse_links_out(folder.path)
        proto = ConfigProto()
        proto.CopyFrom(source)
        model_file = self._complete_by_model(proto, folder, version)
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
        )

    def _first_responses(self, config: ModelConfig) -> FirstResponses | None:
        for family in config.buckets:
            if family != FIRST_RESPONSES.name:
                log.warning(
                    "Metric family '%s' in 'metric_identifier' is not a customizable metric in "
                    "Triton core.",
                    family,
                )
        if not self._histograms:
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
        """Change the instances of a serving version to those of `source`, and return it.

        Kept instances are not interrupted, and removed instances are closed when they are idle.
        Raises ServerError if a new instance cannot be opened; then nothing has changed.
        """
        assert served.group is not None
        proto = ConfigProto.FromString(served.config.proto)
        del proto.instance_group[:]
        proto.instance_group.extend(source.instance_group)
        check.check_given(proto)
        check.check_loaded(proto, self.profile)
        config = replace(ModelConfig.from_proto(proto), model_filename=served.config.model_filename)
        kept, added = kept_and_added(served.running, config.instances)
        scheduler = served.scheduler
        if isinstance(scheduler, CachingScheduler):
            scheduler = scheduler.inner
        assert isinstance(scheduler, InstanceScheduler)
        group, health = served.group, served.health
        instances = self._instances.make(
            config, served.version, folder.path, served.statistics, group, health, added
        )

        def left(name: str, was_last: bool) -> None:
            group.size -= 1
            if was_last:
                health.forget(name)

        numbers = scheduler.change(instances, served.running.keys() - kept.keys(), added, left)
        group.size += len(numbers)
        return replace(served, config=config, running=kept | dict(zip(numbers, added, strict=True)))

    def _complete_by_model(
        self, proto: ConfigProto, folder: ModelFolder, version: int
    ) -> Path | None:
        """Complete `proto` by the model's code and check it. Return the code's file, if any."""
        model_file: Path | None
        if (function := self._stubs.get(folder.name)) is not None:
            model_file = use_stub(proto, function)
        else:
            model_file = locate_code(proto, folder.path / str(version), self._backend_directory)
        check.check_given(proto)
        if model_file is not None and self._auto_completes:
            given = json_form.as_dict(proto)
            if model_file == SHIPPED:
                self._add_settings(given)
            completed = self._hosts.auto_complete(
                model_file,
                folder.path / str(version),
                folder.name,
                given,
                schema.execution_host(proto),
            )
            adopted = complete.adopt_auto_completed(proto, completed)
            if not adopted and not pbtxt.locate(folder.path, self._config_name).exists():
                raise not_found(f"model configuration is not provided for model '{folder.name}'")
            check.check_polled(proto, self.profile)
        check.check_loaded(proto, self.profile)
        return model_file

    def _add_settings(self, given: dict[str, Any]) -> None:
        """Add settings that only Triton's own backends receive; they are not adopted."""
        sizes = self._max_batch_sizes
        size = sizes.get(given["backend"], sizes.get(""))
        if size is not None:
            given["parameters"][MAX_BATCH_SIZE] = {"string_value": size}

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
        version: int,
        folder: Path,
        steps: Sequence[ServedModel],
        statistics: ModelStatistics,
        group: InstanceGroup | None,
        health: Health,
    ) -> Scheduler:
        scheduler: Scheduler
        if group is None:
            scheduler = ensemble_scheduler(config, version, steps, statistics, self._clock)
        else:
            instances = self._instances.make(
                config, version, folder, statistics, group, health, config.instances
            )
            running = instance_scheduler(
                *(config, version, folder, instances, statistics, self._clock),
                *(self._limiter, self._iterations),
            )
            running.open()
            scheduler = running
        if self._cache is not None and config.caches_responses:
            scheduler = CachingScheduler(
                scheduler, self._cache, config.signature, version, statistics, self._clock
            )
        return scheduler
