"""A repository on disk, and what it becomes when it is loaded."""

import pytest
from server.support.clock import ManualClock

from reference_server.observability.metrics import MetricRegistry
from reference_server.repository.loader import ModelLoader
from reference_server.repository.manager import Repository


@pytest.fixture
def models(tmp_path):
    """A folder to write models into."""
    folder = tmp_path / "models"
    folder.mkdir()
    return folder


@pytest.fixture
def load(models):
    """A function: the repository, loaded; closed after the test."""
    loaded = []

    def load_all(*, auto_complete=True):
        def dispatch(request):
            repository.find(request.model_name, request.model_version).infer(request)

        loader = ModelLoader(
            ManualClock(), MetricRegistry(), dispatch, auto_complete_config=auto_complete
        )
        repository = Repository([models], loader, load_threads=2)
        loaded.append(repository)
        repository.load()
        return repository

    yield load_all
    for repository in loaded:
        repository.close()
