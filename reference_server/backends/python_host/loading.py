"""Importing a model's file."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from reference_server.backends.python_host.api.metrics import MetricFamily
from reference_server.backends.python_host.exceptions import describe
from reference_server.backends.python_host.modules import ModelModules
from reference_server.backends.python_host.shared_names import UTILS
from reference_server.backends.python_host.shim import triton_python_backend_utils
from reference_server.core.errors import internal

_SUFFIX = ".py"


def load(
    model_file: Path, family: type[MetricFamily] = MetricFamily
) -> tuple[ModelModules, ModuleType]:
    """A new module table, and in it the model's module, named `<version>.<stem>`.

    `family` is the class that its code makes metrics of.

    `model_file` is `<model>/<version>/<stem>.py`; both directories are searched by the model's
    imports. Runs the model's top-level code, so it may block for long. Raises ServerError, and
    then leaves nothing behind. The caller closes the table.
    """
    if model_file.suffix != _SUFFIX:
        raise internal(f"Model name must end with '.py'. Model name is \"{model_file.name}\".")
    if not model_file.is_file():
        raise internal(f"Python model file not found in '{model_file}'")
    version_directory = model_file.parent
    modules = ModelModules(version_directory, {UTILS: _utils(version_directory, family)})
    try:
        return modules, modules.require(f"{version_directory.name}.{model_file.stem}")
    except BaseException as error:
        modules.close()
        raise internal(describe(error)) from error


def _utils(version_directory: Path, family: type[MetricFamily]) -> ModuleType:
    """`triton_python_backend_utils` as one instance sees it."""
    shim = triton_python_backend_utils
    module = ModuleType(UTILS, shim.__doc__)
    vars(module).update(
        {name: getattr(shim, name) for name in shim.__all__},
        __file__=shim.__file__,
        get_model_dir=lambda: str(version_directory),
        MetricFamily=family,
    )
    return module
