"""The command line against tritonserver's: every flag of its own is known here."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from support.servers import ROOT

from reference_server.command import cli

pytestmark = pytest.mark.oracle

# What a flag is given, where its kind does not say it.
VALUES = {
    "--model-control-mode": "explicit",
    "--log-format": "ISO8601",
    "--rate-limit": "off",
    "--grpc-infer-response-compression-level": "low",
    "--trace-level": "TIMESTAMPS",
    "--trace-config": "rate=3",
    "--metrics-config": "counter_latencies=true",
    "--backend-config": "python,thread-pool-size=1",
    "--cache-config": "local,size=4096",
    "--http-restricted-api": "health:key=value",
    "--grpc-restricted-protocol": "health:key=value",
    "--host-policy": "name,numa-node=0",
    "--sagemaker-safe-port-range": "1-2",
    "--rate-limit-resource": "name:1:0",
    "--response-cache-byte-size": "4096",
}
KINDS = {
    "": None,
    "<string>": "text",
    "<integer>": "3",
    "<boolean>": "true",
    "<float>": "1.5",
    "<<integer>:<integer>>": "0:1",
    "<<device_id>:<fraction>>": "0:0.5",
}
# What it would take to serve them is not here.
REFUSED = {"--allow-sagemaker", "--allow-vertex-ai"}


def ended(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the real server with arguments that end it at once."""
    command = [sys.executable, str(ROOT / "tools" / "oracle.py"), "serve", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.fixture(scope="module")
def usage(oracle_installed: None) -> str:
    """The usage that the real server prints for `--help`, and with each refusal."""
    return ended("--help").stderr


@pytest.fixture(scope="module")
def flags(usage: str) -> dict[str, str]:
    """The flags that the real server's help lists, with the kinds of their values."""
    return dict(re.findall(r"^  (--[a-z0-9-]+) ?(.*)$", usage, re.MULTILINE))


def test_every_flag_of_the_real_server_is_accepted_or_refused_with_a_reason(
    flags: dict[str, str], capsys: pytest.CaptureFixture[str]
):
    assert len(flags) > 80
    refused = set()
    for flag, kind in flags.items():
        if flag == "--help":
            continue
        value = VALUES.get(flag) or KINDS[kind]
        needed = ["--model-control-mode=explicit"] if flag == "--load-model" else []
        try:
            cli.parse([*needed, flag if value is None else f"{flag}={value}"])
        except SystemExit:
            refused.add(flag)
            said = f'Bad option: "{flag}".\nnot served by the reference server'
            assert said in capsys.readouterr().err
    assert refused == REFUSED


@pytest.mark.parametrize(
    "arguments",
    [
        "--no-such-flag",
        "--no-such-flag=3",
        "--http-port",
        "--http-port=",
        "--http-port=abc",
        "--http-port abc",
        "--exit-timeout-secs=abc",
        "--exit-timeout-secs=99999999999",
        "--log-verbose=abc",
        "--allow-http=maybe",
        "--disable-auto-complete-config=1",
        "--model-control-mode=x",
        "--log-format=x",
        "--rate-limit=x",
        "--rate-limit-resource=x",
        "--grpc-infer-response-compression-level=x",
        "--backend-config=a",
        "--cache-config=a",
        "--host-policy=a",
        "--trace-config=x",
        "--metrics-config=a,b=c",
        "--http-restricted-api=x",
        "--http-restricted-api=x:a=b",
        "--grpc-restricted-protocol=health:a=b --grpc-restricted-protocol=health:a=b",
        "--load-model=x",
        "--strict-model-config=maybe",
        "--trace-level=x",
        "--trace-count=x",
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
