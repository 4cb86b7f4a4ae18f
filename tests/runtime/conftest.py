"""Artifacts of the tiny graphs, each built once per session."""

import pytest
from runtime.support.graphs import write


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
