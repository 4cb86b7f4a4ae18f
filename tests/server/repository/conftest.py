"""Fixtures: a model repository on disk, and a loaded repository."""

from dataclasses import replace

import pytest
from server.support.clock import ManualClock
from server.support.model_folders import OPTIONS

from reference_server.observability.metric_registry import MetricRegistry
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
    """A function that returns the loaded repository, also of other folders.

    It is closed after the test.
    """
    loaded = []

    def load_all(*others, auto_complete=True):
        loader = ModelLoader(
            ManualClock(), MetricRegistry(), replace(OPTIONS, auto_complete_config=auto_complete)
        )
        repository = Repository([models, *others], loader, load_threads=2)
        loaded.append(repository)
        repository.load_all()
        return repository

    yield load_all
    for repository in loaded:
        repository.close()
