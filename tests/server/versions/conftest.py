"""The two profiles, over the same models."""

import pytest
from server.support.versions import write_models

from reference_server.testing import open_repository


@pytest.fixture(scope="package")
def models(tmp_path_factory):
    """The folder of the models."""
    folder = tmp_path_factory.mktemp("models")
    write_models(folder)
    return folder


@pytest.fixture(scope="package")
def newest(models):
    """A server that imitates the newest release."""
    with open_repository(models) as repository:
        yield repository


@pytest.fixture(scope="package")
def proven(models):
    """A server that imitates 2.51."""
    with open_repository(models, options=["--triton-version=2.51"]) as repository:
        yield repository


@pytest.fixture(scope="package", params=["newest", "2.51"])
def small(models, request):
    """A server with a limit of 200 bytes, which both profiles handle alike."""
    options = [f"--triton-version={request.param}", "--http-max-input-size=200"]
    with open_repository(models, options=options) as repository:
        yield repository


@pytest.fixture(scope="package")
def open_to_clients(models):
    """A server that imitates the newest release, with shared memory for clients."""
    with open_repository(models, options=["--allow-client-shm=true"]) as repository:
        yield repository
