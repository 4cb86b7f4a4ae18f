"""The command line's refusals as tritonserver prints them; tests/recorded has those of values."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from support.servers import ROOT

from reference_server.command import cli

pytestmark = pytest.mark.oracle


def ended(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the real server with arguments with which it exits immediately."""
    command = [sys.executable, str(ROOT / "tools" / "oracle.py"), "serve", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.fixture(scope="module")
def usage(oracle_installed: None) -> str:
    """Return the usage text, which the real server prints for `--help` and with each refusal."""
    return ended("--help").stderr


@pytest.fixture(scope="module")
def flags(usage: str) -> dict[str, str]:
    """Return the flags in the real server's help, with the types of their values."""
    return dict(re.findall(r"^  (--[a-z0-9-]+) ?(.*)$", usage, re.MULTILINE))


@pytest.mark.parametrize(
    "arguments",
    [
        "--no-such-flag",
        "--no-such-flag=3",
        "--http-port abc",
        "--http-port=abc",
        "--rate-limit=x",
        "--grpc-restricted-protocol=health:a=b --grpc-restricted-protocol=health:a=b",
        "--load-model=x",
        "stray",
        "-- stray",
    ],
)
def test_a_refusal_has_the_streams_the_exit_code_and_the_text_of_the_real_one(
    oracle_installed: None, usage: str, capsys: pytest.CaptureFixture[str], arguments: str
):
    real = ended(*arguments.split())
    with pytest.raises(SystemExit) as exited:
        cli.main(arguments.split())
    ours = capsys.readouterr()
    assert (exited.value.code, ours.out) == (real.returncode, real.stdout) == (1, "")
    assert refusal(ours.err, usage).startswith(refusal(real.stderr, usage))


def refusal(errors: str, usage: str) -> str:
    """Return the lines without the usage and the program's name."""
    # After a refused value, the real server ends its usage with another number of line feeds.
    lines = errors.replace(usage.rstrip("\n"), "").split("\n")
    shown = (line.strip().replace("tritonserver: ", "Error: ") for line in lines)
    return "\n".join(line for line in shown if line)
