"""The pytest fixtures of this package: `triton_model` and `triton_repository`.

The server is imported when a test first uses a fixture, not when pytest starts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from reference_server.testing import Model, ModelRepository, OpenModel, OpenRepository


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the setting `triton_options` to pytest's configuration."""
    parser.addini(
        "triton_options",
        "options of the server for all uses of triton_model and triton_repository, such as "
        "--strict-portable",
        type="args",
        default=[],
    )


@pytest.fixture
def triton_repository(request: pytest.FixtureRequest) -> Iterator[OpenRepository]:
    """Return a function that opens model repositories until the test ends.

    The function has the arguments of `reference_server.testing.open_repository`; the options of
    pytest's setting `triton_options` come first. Relative paths start at pytest's rootdir.
    """
    from reference_server.testing import open_repository

    root = request.config.rootpath
    common: list[str] = request.config.getini("triton_options")
    with contextlib.ExitStack() as stack:

        def open_(
            *directories: str | Path, models: Sequence[str] = ("*",), options: Sequence[str] = ()
        ) -> ModelRepository:
            paths = [root / directory for directory in directories]
            return stack.enter_context(
                open_repository(*paths, models=models, options=[*common, *options])
            )

        yield open_


@pytest.fixture
def triton_model(triton_repository: OpenRepository) -> OpenModel:
    """Return a function that opens model folders until the test ends.

    The function has the arguments of `reference_server.testing.open_model`. Relative paths start at
    pytest's rootdir.
    """

    def open_(folder: str | Path, *, options: Sequence[str] = ()) -> Model:
        path = Path(folder)
        repository = triton_repository(path.parent, models=[path.name], options=options)
        return repository.model(path.name)

    return open_
