"""Importing a model's file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, ModuleType

from reference_server.backends.python_host.api.native import MODULE
from reference_server.backends.python_host.exceptions import describe
from reference_server.backends.python_host.modules import ModelModules
from reference_server.backends.python_host.native_module import native_module
from reference_server.backends.python_host.shared_names import UTILS
from reference_server.backends.python_host.shim import triton_python_backend_utils
from reference_server.core.errors import internal

_SUFFIX = ".py"


def load(
    model_file: Path, own_names: Mapping[str, object] = MappingProxyType({})
) -> tuple[ModelModules, ModuleType]:
    """A new module table, and in it the model's module.

    `own_names` are those of `triton_python_backend_utils` that the instance has for itself.

    `model_file` is `<model>/<version>/<stem>.py`; both directories are searched by the model's
    imports, and the module is named `<version>.<stem>`. Or it is that of a Python-based backend,
    in a folder that is not called by a number: that folder is searched, and the module is named
    `<stem>`. Runs the model's top-level code, so it may block for long. Raises ServerError, and
    then leaves nothing behind. The caller closes the table.
    """
    if model_file.suffix != _SUFFIX:
        raise internal(f"Model name must end with '.py'. Model name is \"{model_file.name}\".")
    if not model_file.is_file():
        raise internal(f"Python model file not found in '{model_file}'")
    directory = model_file.parent
    is_versioned = directory.name.isdecimal()
    utils = _utils(directory, own_names)
    modules = ModelModules(
        directory,
        {UTILS: utils, MODULE: native_module(vars(utils))},
        directory.parent if is_versioned else directory,
    )
    name = f"{directory.name}.{model_file.stem}" if is_versioned else model_file.stem
    try:
        return modules, modules.require(name)
    except BaseException as error:
        modules.close()
        raise internal(describe(error)) from error


def _utils(version_directory: Path, own_names: Mapping[str, object]) -> ModuleType:
    """`triton_python_backend_utils` as one instance sees it."""
    shim = triton_python_backend_utils
    module = ModuleType(UTILS, shim.__doc__)
    vars(module).update(
        {name: getattr(shim, name) for name in shim.__all__},
        __file__=shim.__file__,
        get_model_dir=lambda: str(version_directory),
    )
    vars(module).update(own_names)
    return module
