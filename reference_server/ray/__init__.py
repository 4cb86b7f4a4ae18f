"""A model repository on Ray Serve: one deployment per model, behind the v2 protocol.

    serve run reference_server.ray:app model_repository=/models

The arguments are in docs/ray.md.
"""

# Without `from __future__ import annotations`: Serve inspects the type of the builder's argument.
import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel, ConfigDict, Field
from ray import serve
from ray.serve import Application, Deployment
from ray.serve.handle import DeploymentHandle
from tritonclient.grpc.model_config_pb2 import ModelConfig as ConfigProto

from reference_server.command import cli
from reference_server.config import complete, pbtxt
from reference_server.options import ControlMode, ServerOptions
from reference_server.ray.deployments import Deployed
from reference_server.ray.ingress import NAME, Ingress, application
from reference_server.ray.replica import Replica
from reference_server.repository.model_folders import ModelId, Repositories

#: The number of concurrent requests per replica if the model's configuration does not set it.
_DEFAULT_CONCURRENCY = 100
#: The number of concurrent requests of the ingress, which include all waiting requests.
_INGRESS_CONCURRENCY = 10_000


class Arguments(BaseModel):
    """The arguments of `app`, from the command line or a Serve config file.

    Attributes:
        model_repository: the folder of the repository.
        options: options of `reference-server`, quoted as in a shell.
        models: for each model name, the options of the model's Serve deployment, and `loads`, a
            list of models that the model calls by BLS.
        ingress: the options of the ingress's deployment.
        release: a new value replaces all replicas, one after the other.
    """

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    model_repository: str
    options: str = ""
    models: dict[str, dict[str, Any]] = Field(default_factory=dict)
    ingress: dict[str, Any] = Field(default_factory=dict)
    release: str | int = ""


def app(arguments: Arguments) -> Application:
    """Return the Serve application of a model repository.

    Raises:
        ValueError: an argument is invalid.
        ServerError: the repository cannot be read.
    """
    options = _options(arguments)
    folders = _Folders(options)
    names = options.startup_models or folders.names()
    if unknown := sorted(arguments.models.keys() - names):
        raise ValueError(
            f"models: found unknown names {', '.join(unknown)}; expected names from: "
            f"{', '.join(names)}"
        )
    deployed = {name: _deployed(name, folders, options, arguments.models) for name in names}
    ingress = _deployment(
        serve.ingress(application)(Ingress),
        {"name": NAME, "max_ongoing_requests": _INGRESS_CONCURRENCY, **arguments.ingress},
    )
    return ingress.bind(replace(options, startup_models=()), deployed)


def _deployment(replica: type, options: Mapping[str, Any]) -> Deployment:
    make: Callable[[type], Deployment] = serve.deployment(**options)
    return make(replica)


def _options(arguments: Arguments) -> ServerOptions:
    try:
        options, _ = cli.parse(
            [f"--model-repository={arguments.model_repository}", *shlex.split(arguments.options)]
        )
    except SystemExit as exit:  # the parser has printed the error
        raise ValueError(f"options: {arguments.options!r} has an invalid option") from exit
    # A replica reads the model's files only when it starts and on `reconfigure`. Clients share no
    # memory with a machine that Serve selects.
    return replace(options, control_mode=ControlMode.EXPLICIT, client_shared_memory=False)


def _deployed(
    name: str, folders: "_Folders", options: ServerOptions, given: Mapping[str, Mapping[str, Any]]
) -> Deployed:
    settings = dict(given.get(name, {}))
    needed = (name, *settings.pop("loads", ()))
    config = folders.config(name)
    keeps_state = config.HasField("sequence_batching")
    if keeps_state and (
        "autoscaling_config" in settings or settings.get("num_replicas", 1) not in (1, None)
    ):
        raise ValueError(
            f"models: {name} has sequences, so that all requests need the same replica; expected "
            "num_replicas 1 and no autoscaling_config"
        )
    deployment = _deployment(
        Replica, {"name": name, "max_ongoing_requests": _concurrency(config), **settings}
    )
    bound = deployment.bind(name, replace(options, startup_models=needed))
    # In the arguments of the ingress, Serve replaces `bound` by a handle.
    return Deployed(
        cast("DeploymentHandle[Any]", bound),
        keeps_state=keeps_state,
        decoupled=config.model_transaction_policy.decoupled,
    )


def _concurrency(config: ConfigProto) -> int:
    """Return the rows of the current and the next batches of all instances.

    Further requests wait in the ingress: the first free replica takes them.
    """
    if (
        config.platform == "ensemble"
        or config.HasField("sequence_batching")
        or config.model_transaction_policy.decoupled
    ):
        return _DEFAULT_CONCURRENCY
    instances = sum(group.count for group in config.instance_group)
    return int(2 * max(1, config.max_batch_size) * max(1, instances))


class _Folders:
    """The content of the repositories that is known without loading a model."""

    def __init__(self, options: ServerOptions) -> None:
        self._repositories = Repositories(options.model_repositories)
        self._config_name = options.model_config_name

    def names(self) -> tuple[str, ...]:
        """Return the names of the models that a start loads: all names without a leading dot."""
        found = self._repositories.directories()
        return tuple(model.name for model in found if not model.name.startswith("."))

    def config(self, name: str) -> ConfigProto:
        """Return a configuration, completed without running the model's code."""
        folder = self._folder(name)
        config = pbtxt.read(pbtxt.locate(folder, self._config_name))
        complete.complete(config, folder)
        return config

    def _folder(self, name: str) -> Path:
        return self._repositories.find(ModelId(name)).path
