"""The oldest and the newest supported version of NVIDIA's client library work with one server.

The newest is the version that pip installed. `make clients` fetches the oldest version.
"""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import tritonclient
from support.servers import ROOT, Server

from tools import triton_schema, versions

ROUND = ROOT / "tests" / "contract" / "client_round.py"


@pytest.fixture(scope="module")
def oldest() -> Path:
    """Return the wheel of the oldest version."""
    wheel = versions.cached(versions.oldest_client())
    if wheel is None:
        pytest.skip(f"needs {versions.oldest_client()}: make clients")
    return wheel


def round_of_calls(server: Server, *path: Path) -> tuple[str, Path]:
    """Make all calls with a version of the library; return the version and its folder."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path))}
    command = [sys.executable, str(ROUND), server.http, server.grpc]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    version, place = done.stdout.split()
    return version, Path(place)


def test_the_newest_client_makes_its_calls(probed_reference: Server):
    version, place = round_of_calls(probed_reference)
    assert version == importlib.metadata.version("tritonclient")
    assert [str(place)] == list(tritonclient.__path__)


def test_the_oldest_client_makes_its_calls(probed_reference: Server, oldest: Path, tmp_path: Path):
    with zipfile.ZipFile(oldest) as wheel:
        wheel.extractall(tmp_path)
    # In a wheel of one platform the package lies apart from its metadata.
    folders = (tmp_path, *tmp_path.glob("*.data/purelib"))
    version, place = round_of_calls(probed_reference, *folders)
    assert f"tritonclient=={version}" == versions.oldest_client()
    assert place.is_relative_to(tmp_path)


def test_the_oldest_schema_is_part_of_the_newest(oldest: Path):
    before, after = triton_schema.of_wheel(oldest), triton_schema.installed()
    found = versions.differences({"schema": before}, {"schema": after})
    assert [difference for difference in found if difference.before] == []
    assert before["ModelInferRequest.id"] == {"": "string", "number": "3"}
