"""Fixtures of test modules that start both servers on one folder, so that paths in texts agree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from contract.probes import Probe, write_probe
from support.servers import Flag, Server, start_reference_server, start_tritonserver


def folder_of(probes: Mapping[str, Probe]) -> Any:
    """Return a fixture `repository`: a folder with these models."""

    @pytest.fixture(scope="module")
    def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
        folder = tmp_path_factory.mktemp("models") / "repository"
        for name, probe in probes.items():
            write_probe(folder, name, probe)
        return folder

    return repository


def both_servers(ready_path: str = "/v2/health/ready", **flags: Flag) -> tuple[Any, Any]:
    """Return two fixtures: the real server and the reference server on the fixture `repository`."""

    @pytest.fixture(scope="module")
    def triton(oracle_installed: None, repository: Path) -> Iterator[Server]:
        with start_tritonserver(repository, ready_path=ready_path, **flags) as server:
            yield server

    @pytest.fixture(scope="module")
    def reference(repository: Path) -> Iterator[Server]:
        with start_reference_server(repository, ready_path=ready_path, **flags) as server:
            yield server

    return triton, reference
