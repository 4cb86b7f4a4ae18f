"""The clients of the Open Inference Protocol receive equal answers from both servers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.servers import Server

CLIENT = Path(__file__).with_name("open_inference_client.py")

pytestmark = pytest.mark.oracle


def answers(wire: str, address: str) -> list[Any]:
    """Return the client's output."""
    done = subprocess.run(
        [sys.executable, CLIENT, wire, address], check=True, capture_output=True, text=True
    )
    found: list[Any] = json.loads(done.stdout)
    return found


def test_over_http(probed_triton: Server, probed_reference: Server):
    real, ours = (answers("http", server.http) for server in (probed_triton, probed_reference))
    assert ours == real
    assert [answer["outputs"][0]["data"] for answer in ours[7:9]] == [[1.5, -2.0, 3.25]] * 2


def test_over_grpc(probed_triton: Server, probed_reference: Server):
    real, ours = (answers("grpc", server.grpc) for server in (probed_triton, probed_reference))
    assert ours == real
    assert 'id: "from afar"' in ours[5]
