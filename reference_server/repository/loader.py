"""Loading one model: configuration, instances, scheduler. Blocks; safe from any thread."""

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
from reference_server.config import check, complete, pbtxt, render, schema
from reference_server.config.scheduler_settings import ControlKind
from reference_server.config.schema import ModelConfig
from reference_server.core.errors import internal, not_found
from reference_server.core.health import Health
from reference_server.core.paths import refuse_links_out
from reference_server.core.ports import Clock, Metrics, Scheduler, Turns
from reference_server.core.profiles import V2_51, TritonProfile
from reference_server.core.rules import Correlation, RequestRules
from reference_server.observability.executions import ExecutionWatch
from reference_server.observability.first_responses import FIRST_RESPONSES, FirstResponses
from reference_server.observability.latency_summaries import LatencySummaries
from reference_server.observability.model_statistics import ModelStatistics
from reference_server.options import BACKEND_DIRECTORY, MAX_BATCH_SIZE, Quantile
from reference_server.repository.bls import BlsCalls
from reference_server.repository.model_files import SHIPPED, labels_of, locate_code, stand_in
from reference_server.repository.model_folders import ModelFolder
from reference_server.repository.schedulers import (
    InstanceMaker,
    ensemble_scheduler,
    instance_scheduler,
    stay_or_go,
)
from reference_server.repository.versions import ServedModel
from reference_server.scheduling.deadlocks import InstanceGroup
from reference_server.scheduling.instance_scheduler import InstanceScheduler
from reference_server.scheduling.rate_limiter import RateLimiter
from reference_server.scheduling.response_cache import CachingScheduler, ResponseCache

log = logging.getLogger(__name__)

#: A loaded model by name and version. Raises ServerError if there is none.
Find = Callable[[str, int], ServedModel]


class ModelLoader:
    """Turns a model's folder into a ServedModel.

    `metrics` is where models get families of their own, `turns` are those of the loop on which
    requests come, `cache` what those use that ask for it.
    With `quantiles` there are summaries of latencies, with `histograms` those of first responses.
    In `backend_directory` are the Python-based backends; `python_backend` are the settings of the
    one that runs them all. `max_batch_sizes` are the defaults that models of a backend complete
    their configuration with, "" that of all others. `stubs` are the functions that stand in for
    models. Configurations that are called `config_name` are preferred. What requests and models
    may do is as the `profile` says. `executions` watches inline models. Without `outside_links` no
    file of a model may be a link to what is not in its folder.
    """

    def __init__(
        self,
        clock: Clock,
        metrics: Metrics,
        turns: Turns | None = None,
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
        self._turns = turns
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
        #: What the loaded models ask of the server; to be connected once it is ready.
        self.calls = BlsCalls(clock, profile)
        self._instances = InstanceMaker(self._hosts, self.calls, clock, profile)

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
        """One version, ready to serve. Raises ServerError with the reason if it cannot be.

        `find` gives the loaded models of an ensemble's steps, which it then holds on to.
        """
        began_ns = self._clock.monotonic_ns()
        if not self._outside_links:
            refuse_links_out(folder.path)
        proto = ConfigProto()
        proto.CopyFrom(source)
        model_file = self._find_out(proto, folder, version)
        steps = [
            find(step.model_name, step.model_version) for step in proto.ensemble_scheduling.step
        ]
        if proto.platform == "ensemble":
            # Whatever the file says: an ensemble answers as often as its models do.
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
            # Of an ensemble Triton sets none: it has no instances.
            load_ns=0 if group is None else self._clock.monotonic_ns() - began_ns,
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
        """The same version with the instances that `source` asks for, serving while they change.

        Those that stay know nothing of it; those that leave are closed when they are idle. If one
        that comes cannot be opened, nothing has changed. Raises ServerError.
        """
        assert served.group is not None
        proto = ConfigProto.FromString(served.config.proto)
        del proto.instance_group[:]
        proto.instance_group.extend(source.instance_group)
        check.check_given(proto)
        check.check_loaded(proto, self.profile)
        config = replace(ModelConfig.from_proto(proto), model_filename=served.config.model_filename)
        stay, wanted = stay_or_go(served.running, config.instances)
        scheduler = served.scheduler
        if isinstance(scheduler, CachingScheduler):
            scheduler = scheduler.inner
        assert isinstance(scheduler, InstanceScheduler)
        group, health = served.group, served.health
        instances = self._instances.make(
            config, served.version, folder.path, served.statistics, group, health, wanted
        )

        def left(name: str, was_last: bool) -> None:
            group.size -= 1
            if was_last:
                health.forget(name)

        numbers = scheduler.change(instances, served.running.keys() - stay.keys(), wanted, left)
        group.size += len(numbers)
        return replace(
            served, config=config, running=stay | dict(zip(numbers, wanted, strict=True))
        )

    def _find_out(self, proto: ConfigProto, folder: ModelFolder, version: int) -> Path | None:
        """Let the model complete and check `proto`; returns the file of its code, if it has one."""
        model_file: Path | None
        if (function := self._stubs.get(folder.name)) is not None:
            model_file = stand_in(proto, function)
        else:
            model_file = locate_code(proto, folder.path / str(version), self._backend_directory)
        check.check_given(proto)
        if model_file is not None and self._auto_completes:
            given = render.as_dict(proto)
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
        """Add what Triton's own backends are told besides; nothing of it is adopted."""
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
                *(self._limiter, self._turns),
            )
            running.open()
            scheduler = running
        if self._cache is not None and config.caches_responses:
            scheduler = CachingScheduler(
                scheduler, self._cache, config.signature, version, statistics, self._clock
            )
        return scheduler
