"""Fixtures that open models, and checks that tests leave no module in the process."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest
from server.backends import kit
from server.backends.process.sharing import SharedProcess, hosted

from reference_server.backends.python_host.shared_names import SharedName
from reference_server.core.ports import ModelInstance

#: The modules whose tests run on both hosts.
ON_BOTH_HOSTS = (
    "test_checklist",
    "test_inline_execute",
    "test_inline_coroutines",
    "test_exceptions",
    "test_request",
    "test_response",
    "test_tensor",
    "test_decoupled",
    "test_sender",
    "test_metrics",
    "test_logger",
    "test_inline_life",
    "test_imports",
    "test_dlpack",
    "test_forks",
    "test_pickles",
    "test_bls",
)

#: The tests among them that apply to the inline host only.
INLINE_ONLY = {
    "test_an_execution_has_the_end_of_input_and_start_of_output",  # uses a clock of the test
    "test_arrays_pass_through_without_a_copy",
    "test_received_bytes_are_viewed_not_copied",
    "test_the_models_exception_is_the_cause",
    "test_finalize_runs_once",  # the process prints
    "test_every_form_of_import_finds_the_models_files",  # the process imports in the same way
    "test_failed_imports_raise_pythons_errors",
    "test_finalize_waits_for_all_responses",  # the test holds the model's object
    "test_two_models_open_side_by_side",
    "test_threads_know_the_classes_of_their_own_model",  # two models open
}


@pytest.fixture(autouse=True)
def no_module_is_left_behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fail a test that leaves a module of a model in the process."""
    path, modules = sys.path.copy(), sys.modules.copy()
    yield
    left = sys.path.copy()
    sys.path[:] = path
    assert left == path
    new = [module for name, module in sys.modules.items() if modules.get(name) is not module]
    assert not [module for module in new if type(module) is SharedName]
    files = [getattr(module, "__file__", None) or "" for module in new]
    assert not [file for file in files if file.startswith(str(tmp_path_factory.getbasetemp()))]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the tests of both hosts on each of them."""
    if (
        "host" in metafunc.fixturenames
        and metafunc.module.__name__.endswith(ON_BOTH_HOSTS)
        and metafunc.function.__name__ not in INLINE_ONLY
    ):
        metafunc.parametrize("host", ["inline", "process"], indirect=True)


@pytest.fixture(scope="session")
def shared_process() -> Iterator[SharedProcess]:
    """One child process for all tests that need one."""
    process = SharedProcess()
    yield process
    process.close()


@pytest.fixture
def host(request: pytest.FixtureRequest) -> Callable[..., ModelInstance]:
    """A function that creates an instance of the model in a file, not open yet."""
    if getattr(request, "param", "inline") == "inline":
        return kit.instance
    return partial(hosted, request.getfixturevalue("shared_process"))


@pytest.fixture
def open_file(host: Callable[..., ModelInstance]) -> Iterator[Callable[..., ModelInstance]]:
    """A function that opens an instance of the model in a file, closed after the test."""
    opened: list[ModelInstance] = []

    def open_one(file: Path, **changes: object) -> ModelInstance:
        instance = host(file, **changes)
        instance.open()
        opened.append(instance)
        return instance

    yield open_one
    for instance in opened:
        instance.close()


@pytest.fixture
def open_model(
    tmp_path: Path, open_file: Callable[..., ModelInstance]
) -> Callable[..., ModelInstance]:
    """A function that writes a model's source and other files, and opens an instance of it."""

    def open_one(source: str, files: Mapping[str, str] = {}, **changes: object) -> ModelInstance:
        return open_file(kit.model_file(tmp_path, source, files), **changes)

    return open_one


@pytest.fixture
def reply_of(open_model: Callable[..., ModelInstance]) -> Callable[..., object]:
    """A function that opens a model of the given lines and returns its text."""

    def reply(*lines: str, files: Mapping[str, str] = {}) -> object:
        return kit.said(open_model(kit.replying(*lines), files))

    return reply
