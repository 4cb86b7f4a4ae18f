"""Modules that Cython compiles where a C compiler is: both of their forms."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


def source(module: ModuleType) -> Path:
    """The file that a module is compiled from, or is."""
    return Path(module.__file__).with_name(f"{module.__name__.rpartition('.')[2]}.py")


def as_python(module: ModuleType) -> ModuleType:
    """The source of a module as Python, whether or not it is compiled."""
    spec = importlib.util.spec_from_file_location(f"{module.__name__}_as_python", source(module))
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def unless_compiled(module: ModuleType) -> pytest.MarkDecorator:
    """Skip where a module is Python alone."""
    is_python = Path(module.__file__) == source(module)
    return pytest.mark.skipif(
        is_python, reason=f"{module.__name__} is not compiled: make, with gcc"
    )
