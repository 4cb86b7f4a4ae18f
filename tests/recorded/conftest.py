"""The reference server in this process, on the probe models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from contract.conftest import PROBING, probe_repository
from support.in_process import InProcessServer, start_in_process

__all__ = ["probe_repository"]


@pytest.fixture(scope="session")
def server(probe_repository: Path) -> Iterator[InProcessServer]:
    """A server of all probe models; some of them fail to load, which their rows expect."""
    with start_in_process(probe_repository, **PROBING) as started:
        yield started
