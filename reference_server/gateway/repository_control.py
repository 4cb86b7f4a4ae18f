"""The operations of repository control: index, load, unload.

The operations block. They may be called from any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from reference_server.core.errors import invalid_arg, unavailable, unsupported
from reference_server.core.profiles import V2_51, TritonProfile
from reference_server.core.request import Parameter
from reference_server.options import ControlMode
from reference_server.repository.bls import NOT_EXPLICIT
from reference_server.repository.manager import Repository
from reference_server.repository.model_folders import Override, check_name
from reference_server.repository.versions import IndexEntry

_CONFIG = "config"
_FILE = "file:"
#: The most files of a load request. Each is written to the disk.
_MOST_FILES = 10_000


class RepositoryControl:
    """The operations that a client can request of the repository.

    Args:
        repository: The models.
        mode: The control mode. Only EXPLICIT allows loads and unloads.
        check_ready: Raises ServerError while the server does not execute these operations.
        profile: The Triton release to imitate.
        accepts_files: Whether a load request may contain files, which may be code.
    """

    def __init__(
        self,
        repository: Repository,
        mode: ControlMode,
        check_ready: Callable[[], None] = lambda: None,
        profile: TritonProfile = V2_51,
        *,
        accepts_files: bool = True,
    ) -> None:
        self._accepts_files = accepts_files
        self._profile = profile
        self._check_ready = check_ready
        self._repository = repository
        self._mode = mode

    def index(self, *, ready_only: bool = False, repository: str = "") -> Sequence[IndexEntry]:
        """Return the models and their versions, sorted by name, then version.

        Raises ServerError UNSUPPORTED if a repository is named.
        """
        _check_repository(repository)
        self._check_ready()
        return self._repository.index(
            ready_only=ready_only,
            # No client waits for these loads, so the index reports their failures.
            with_failures=self._mode is ControlMode.POLL,
        )

    def load(
        self,
        name: str,
        parameters: Mapping[str, Parameter | bytes | None] | None = None,
        *,
        repository: str = "",
    ) -> None:
        """Load a model, or reload it if it has changed; returns when that is done.

        `parameters` may contain `config`, the configuration as JSON, and `file:<path>`, the content
        of a file; with files, the model consists only of these files. Raises ServerError.
        """
        _check_repository(repository)
        override = _override(parameters or {})
        self._check_mode()
        if override is not None and override.files and not self._accepts_files:
            raise unsupported(
                f"load request for model '{name}': found files, expected none; start the server "
                "with --allow-file-override=true to accept them"
            )
        if override is not None and len(override.files) > _MOST_FILES:
            raise invalid_arg(
                f"load request for model '{name}': found {len(override.files)} files; expected at "
                f"most {_MOST_FILES}"
            )
        check_name(name, self._profile)
        self._repository.load(name, override)

    def unload(self, name: str, *, unload_dependents: bool = False, repository: str = "") -> None:
        """Unload a model without waiting for requests in flight, which are still answered.

        `unload_dependents` also unloads the models of an ensemble, unless another ensemble uses
        them or they were loaded by name. A model that is not loaded is no error. Raises
        ServerError.
        """
        _check_repository(repository)
        self._check_mode()
        self._repository.unload(name, with_unused=unload_dependents)

    def _check_mode(self) -> None:
        self._check_ready()
        if self._mode is not ControlMode.EXPLICIT:
            raise unavailable(NOT_EXPLICIT)


def _check_repository(name: str) -> None:
    if name:
        raise unsupported("'repository_name' specification is not supported")


def _override(parameters: Mapping[str, Parameter | bytes | None]) -> Override | None:
    config: str | None = None
    files: dict[str, bytes] = {}
    for key, value in parameters.items():
        if key == _CONFIG:
            if not isinstance(value, str):
                raise _wrong_type(key, "string_param")
            config = value
        elif key.startswith(_FILE):
            if not isinstance(value, bytes):
                raise _wrong_type(key, "bytes_param")
            files[key[len(_FILE) :]] = value
        else:
            raise invalid_arg(f"unrecognized load parameter '{key}'.")
    return Override(config, files) if parameters else None


def _wrong_type(key: str, expected: str) -> Exception:
    return invalid_arg(f"invalid value type for load parameter '{key}', expected {expected}.")
