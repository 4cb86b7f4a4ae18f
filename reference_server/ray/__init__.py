"""A model repository on Ray Serve: each model a deployment, the v2 protocol in front of them.

    serve run reference_server.ray:app model_repository=/models

docs/ray.md has its arguments.
"""

# No `annotations` of the future: Serve looks for the class that the builder's argument is of.
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
from reference_server.ray.asking import Deployed
from reference_server.ray.ingress import NAME, Ingress, application
from reference_server.ray.replica import Replica
from reference_server.repository.model_folders import Repositories
from reference_server.repository.model_ids import ModelId

#: Requests that a replica has at once where its configuration does not tell what it can do.
_MANY = 100
#: Requests that the ingress has at once: all that wait for their models.
_MOST_WAITING = 10_000


class Arguments(BaseModel):
    """What `app` takes, from the command line or a Serve config file.

    `options` are those of `reference-server`, as a shell would split them. `models` has, by names,
    the options of Serve's deployments, and `loads`: models that this one asks by BLS. Another
    `release` has all replicas replaced, one after the other.
    """

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    model_repository: str
    options: str = ""
    models: dict[str, dict[str, Any]] = Field(default_factory=dict)
    ingress: dict[str, Any] = Field(default_factory=dict)
    release: str | int = ""


def app(arguments: Arguments) -> Application:
    """The application. Raises ValueError, or ServerError for a repository that cannot be read."""
    options = _options(arguments)
    folders = _Folders(options)
    names = options.startup_models or folders.names()
    if unknown := sorted(arguments.models.keys() - names):
        raise ValueError(
            f"models: {', '.join(unknown)} not among those that are served, expected some of: "
            f"{', '.join(names)}"
        )
    deployed = {name: _deployed(name, folders, options, arguments.models) for name in names}
    ingress = _deployment(
        serve.ingress(application)(Ingress),
        {"name": NAME, "max_ongoing_requests": _MOST_WAITING, **arguments.ingress},
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
    except SystemExit as exit:  # the parser has told what is wrong
        raise ValueError(f"options: {arguments.options!r} is not what the server takes") from exit
    # A replica reads the files when it starts or is told to (`reconfigure`), and never by itself;
    # clients share no memory with a machine that they do not know.
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
            f"models: {name} has sequences, whose requests must all go to one replica: expected "
            "num_replicas 1 and no autoscaling_config"
        )
    deployment = _deployment(
        Replica, {"name": name, "max_ongoing_requests": _most_at_once(config), **settings}
    )
    bound = deployment.bind(name, replace(options, startup_models=needed))
    # Within the arguments of the ingress Serve makes a handle of it.
    return Deployed(
        cast("DeploymentHandle[Any]", bound),
        keeps_state=keeps_state,
        decoupled=config.model_transaction_policy.decoupled,
    )


def _most_at_once(config: ConfigProto) -> int:
    """The rows of the batches that all instances execute, and of the next ones.

    More wait better in front: whichever replica is free first takes them.
    """
    if (
        config.platform == "ensemble"
        or config.HasField("sequence_batching")
        or config.model_transaction_policy.decoupled
    ):
        return _MANY
    instances = sum(group.count for group in config.instance_group)
    return int(2 * max(1, config.max_batch_size) * max(1, instances))


class _Folders:
    """What the repositories hold, as far as it can be known without loading a model."""

    def __init__(self, options: ServerOptions) -> None:
        self._repositories = Repositories(options.model_repositories)
        self._config_name = options.model_config_name

    def names(self) -> tuple[str, ...]:
        """All models; those whose names begin with a dot are left out, as at a server's start."""
        found = self._repositories.directories()
        return tuple(model.name for model in found if not model.name.startswith("."))

    def config(self, name: str) -> ConfigProto:
        """The configuration, completed but for what the model itself would add."""
        folder = self._folder(name)
        config = pbtxt.read(pbtxt.locate(folder, self._config_name))
        complete.complete(config, folder)
        return config

    def _folder(self, name: str) -> Path:
        return self._repositories.find(ModelId(name)).path
