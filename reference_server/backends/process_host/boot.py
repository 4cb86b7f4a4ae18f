"""Starts the child process in the interpreter of a model's environment, from CPython 3.9 on.

The program's arguments are the folder of `reference_server`, the folder that was put in front of
LD_LIBRARY_PATH, the name of the instance, which `ps` shows, and the arguments of `child.main`. The
server's other packages are not importable: the environment has its own packages.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import sys
from collections.abc import Callable
from typing import Any


def start(package: str, libraries: str, *numbers: str) -> None:
    """Import the child's code from `package` and run it."""
    sys.path[0] = ""  # not the folder of this file
    sys.argv[:] = [""]  # as in Triton
    _restore_library_path(libraries)
    _add_package(package)
    _import_child()(*map(int, numbers))


def _restore_library_path(libraries: str) -> None:
    """Remove `libraries` from LD_LIBRARY_PATH, as Triton does, for programs that the model runs."""
    rest = os.environ["LD_LIBRARY_PATH"][len(libraries) + 1 :]
    if rest:
        os.environ["LD_LIBRARY_PATH"] = rest
    else:
        del os.environ["LD_LIBRARY_PATH"]


def _add_package(folder: str) -> None:
    """Import `reference_server` without making the packages beside its folder importable."""
    spec = importlib.util.spec_from_file_location(
        "reference_server",
        os.path.join(folder, "__init__.py"),  # noqa: PTH118 - nothing else needs pathlib here
        submodule_search_locations=[folder],
    )
    assert spec is not None
    assert spec.loader is not None
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


def _import_child() -> Callable[..., None]:
    """Return `child.main`. On Python 3.9, arguments of functions that 3.10 added are ignored."""
    if sys.version_info >= (3, 10):  # noqa: UP036
        from reference_server.backends.process_host.child import main

        return main
    real = dataclasses.dataclass

    def dataclass(cls: Any = None, *, slots: bool = False, **options: Any) -> Any:  # noqa: ANN401
        return real(cls, **options)

    def zipped(*iterables: Any, strict: bool = False) -> Any:  # noqa: ANN401
        return zip(*iterables)  # noqa: B905

    dataclasses.dataclass = dataclass
    try:
        from reference_server.backends.process_host.child import main
    finally:
        dataclasses.dataclass = real
    for name, module in list(sys.modules.items()):
        if name.startswith("reference_server."):
            vars(module)["zip"] = zipped
    return main


if __name__ == "__main__":
    del __file__  # a process that the model spawns must not run this file again
    start(*sys.argv[1:3], *sys.argv[4:])
