"""Artifacts of the tiny graphs, each built once per session, and open runtimes."""

import pytest
from runtime.support.axis_graphs import saved
from runtime.support.graphs import write

from ge_runtime import Runtime


@pytest.fixture(scope="session")
def version_dir(tmp_path_factory):
    """A function: the version folder with a graph's artifact for an engine."""
    folders = {}

    def folder_of(graph, engine="onnxruntime"):
        key = (graph.name, engine)
        if key not in folders:
            folder = tmp_path_factory.mktemp(f"{graph.name}_{engine}")
            write(graph, engine, folder)
            folders[key] = folder
        return folders[key]

    return folder_of


@pytest.fixture
def opened(tmp_path):
    """Return a function: graph, configuration -> an open runtime."""
    runtimes = []

    def open_runtime(graph, config):
        runtimes.append(Runtime.open(saved(graph, tmp_path), config, instance_name="tiny_0"))
        return runtimes[-1]

    yield open_runtime
    for runtime in runtimes:
        runtime.close()
