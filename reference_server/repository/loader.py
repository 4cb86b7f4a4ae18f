"""Loading one model: configuration, instances, scheduler. Blocks; safe from any thread."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig as ConfigProto

from reference_server.backends.python_host.inline import InlineInstance, InstanceSpec, auto_complete
from reference_server.backends.reshape import with_reshaped_outputs
from reference_server.config import check, complete, pbtxt, render
from reference_server.config.schema import ModelConfig
from reference_server.core.clock import Clock
from reference_server.core.errors import internal, invalid_arg
from reference_server.core.ports import Dispatch, Metrics, Scheduler
from reference_server.core.request import InferRequest
from reference_server.core.rules import RequestRules
from reference_server.observability.statistics import ModelStatistics
from reference_server.repository.scan import ModelFolder
from reference_server.repository.served import ServedModel
from reference_server.scheduling.batcher import DynamicBatcher
from reference_server.scheduling.ensemble import EnsembleScheduler
from reference_server.scheduling.instances import InstanceScheduler
from reference_server.scheduling.work import Fifo, WorkQueue

log = logging.getLogger(__name__)

#: A loaded model by name and version. Raises ServerError if there is none.
Find = Callable[[str, int], ServedModel]


class ModelLoader:
    """Turns a model's folder into a ServedModel.

    `metrics` is where models get families of their own.
    """

    def __init__(self, clock: Clock, metrics: Metrics, *, auto_complete_config: bool) -> None:
        self._clock = clock
        self._metrics = metrics
        self._auto_completes = auto_complete_config
        self._order = itertools.count()

    def read_config(self, folder: ModelFolder) -> ConfigProto:
        """The completed configuration of a folder, before the model itself is asked.

        Raises ServerError where Triton's poll of the repository fails.
        """
        return self.complete(folder, pbtxt.read(folder.path / pbtxt.FILE_NAME))

    def complete(self, folder: ModelFolder, config: ConfigProto) -> ConfigProto:
        """`config`, completed and checked, as if it had stood in the folder. Raises ServerError."""
        config.name = config.name or folder.name
        complete.complete(config, folder.path)
        check.check_polled(config, folder.name)
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
        if proto.backend == "python" and self._auto_completes:
            model_file = version_folder / proto.default_model_filename
            complete.adopt_auto_completed(
                proto, auto_complete(model_file, folder.name, render.as_dict(proto))
            )
        check.check_loaded(proto)
        config = ModelConfig.from_proto(proto)
        labels = {**_labels_of_steps(config, find), **_read_labels(config, folder.path)}
        statistics = statistics or ModelStatistics(config.name, version, self._clock)
        scheduler = self._scheduler(config, folder, version_folder, version, find, statistics)
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
        )

    def _scheduler(
        self,
        config: ModelConfig,
        folder: ModelFolder,
        version_folder: Path,
        version: int,
        find: Find,
        statistics: ModelStatistics,
    ) -> Scheduler:
        if config.is_ensemble:
            dispatch = _to_steps(config, find, self._clock)
            return EnsembleScheduler(config, version, dispatch, statistics, self._clock)
        instances = [
            with_reshaped_outputs(
                InlineInstance(
                    _spec(config, folder, version_folder, version, name), self._clock, self._metrics
                ),
                config.signature,
            )
            for name in config.instance_names
        ]
        scheduler = InstanceScheduler(
            config.name, version, _work_queue(config), instances, statistics, self._clock
        )
        scheduler.open()
        return scheduler


def _to_steps(config: ModelConfig, find: Find, clock: Clock) -> Dispatch:
    """Sends an ensemble's requests to the very models that it was loaded with.

    So a request that is on its way is finished by these, whatever is loaded or unloaded meanwhile.
    """
    models = {
        (step.model_name, step.model_version): find(step.model_name, step.model_version)
        for step in config.ensemble
    }

    def dispatch(request: InferRequest) -> None:
        request.received_ns = clock.monotonic_ns()
        models[request.model_name, request.model_version].infer(request)

    return dispatch


def _work_queue(config: ModelConfig) -> WorkQueue:
    batching = config.dynamic_batching
    if batching is None:
        return Fifo()
    return DynamicBatcher(
        config.signature.max_batch_size,
        batching.preferred_batch_sizes,
        batching.max_queue_delay_us * 1000,
    )


def _spec(
    config: ModelConfig, folder: ModelFolder, version_folder: Path, version: int, name: str
) -> InstanceSpec:
    return InstanceSpec(
        name=name,
        model_name=config.name,
        model_version=version,
        model_directory=folder.path,
        version_directory=version_folder,
        model_filename=config.model_filename,
        config_json=config.json,
        output_names=frozenset(output.name for output in config.signature.outputs),
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
