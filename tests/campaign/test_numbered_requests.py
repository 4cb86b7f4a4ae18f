"""`benchmarks.attack.numbered_requests` checks every response and detects a wrong one."""

import subprocess
import sys

import pytest

from benchmarks.attack import numbered_requests

pytestmark = pytest.mark.brute_force


def test_each_request_gets_its_own_response():
    program = [sys.executable, "-m", "benchmarks.attack.numbered_requests"]
    few = ["--servers", "reference", "--requests", "2000"]
    run = subprocess.run([*program, *few], capture_output=True, text=True, timeout=120, check=True)
    rows = [line.split() for line in run.stdout.splitlines() if line.startswith("reference")]
    assert [row[1:4] for row in rows] == [
        [front, str(connections), "500"]
        for front in ("http", "grpc")
        for connections in (1, 8, 32, 256)
    ]


@pytest.mark.parametrize("number", [1, 2**20, 10**9])
def test_a_response_to_another_request_ends_the_run(number):
    body = numbered_requests.identity(number) + numbered_requests.tensor(number) * 2
    numbered_requests.check(number, body)
    for other in (number - 1, number + 1, number + 2**20):
        with pytest.raises(SystemExit, match=f"request {other}: wrong response"):
            numbered_requests.check(other, body)
