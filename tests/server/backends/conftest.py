"""Fixtures that open models and look after what they leave in the process."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from server.backends import kit

from reference_server.backends.python_host.inline import InlineInstance
from reference_server.backends.python_host.shared_names import SharedName
from reference_server.backends.python_host.shim import shim_directory

# As users do who import the module outside any server.
sys.path.append(str(shim_directory()))


@pytest.fixture(autouse=True)
def nothing_is_left_behind(tmp_path: Path) -> Iterator[None]:
    """Fail a test after which the process still knows a model's modules."""
    path = sys.path.copy()
    yield
    left = sys.path.copy()
    sys.path[:] = path
    assert left == path
    assert not [name for name, module in sys.modules.items() if type(module) is SharedName]
    files = [getattr(module, "__file__", None) or "" for module in sys.modules.values()]
    assert not [file for file in files if file.startswith(str(tmp_path))]


@pytest.fixture
def open_file() -> Iterator[Callable[..., InlineInstance]]:
    """A function that opens an instance of the model in a file, closed after the test."""
    opened: list[InlineInstance] = []

    def open_one(file: Path, **changes: object) -> InlineInstance:
        instance = kit.instance(file, **changes)
        instance.open()
        opened.append(instance)
        return instance

    yield open_one
    for instance in opened:
        instance.close()


@pytest.fixture
def open_model(
    tmp_path: Path, open_file: Callable[..., InlineInstance]
) -> Callable[..., InlineInstance]:
    """A function that writes a model's source and other files, and opens an instance of it."""

    def open_one(source: str, files: Mapping[str, str] = {}, **changes: object) -> InlineInstance:
        return open_file(kit.model_file(tmp_path, source, files), **changes)

    return open_one


@pytest.fixture
def tells(open_model: Callable[..., InlineInstance]) -> Callable[..., object]:
    """A function that opens a model made of lines, and gives what its `tell` returns."""

    def tell(*lines: str, files: Mapping[str, str] = {}) -> object:
        return kit.said(open_model(kit.telling(*lines), files))

    return tell
