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


def tritonserver(*arguments: str) -> str:
    """Return the real server's output for arguments that end it at once."""
    command = [sys.executable, str(ROOT / "tools" / "oracle.py"), "serve", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return ended.stdout + ended.stderr


@pytest.fixture(scope="module")
def flags(oracle_installed: None) -> dict[str, str]:
    """The flags that the real server's help lists, with the kinds of their values."""
    return dict(re.findall(r"^  (--[a-z0-9-]+) ?(.*)$", tritonserver("--help"), re.MULTILINE))


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
    ("argument", "reason"),
    [
        ("--no-such-flag", "unrecognized option '--no-such-flag'"),
        ("--http-port", "option '--http-port' requires an argument"),
        ("--http-port=abc", "Invalid option value. Got abc"),
        ("--exit-timeout-secs=abc", "Invalid option value. Got abc"),
        ("--log-verbose=abc", "Invalid option value. Got abc"),
        ("--allow-http=maybe", "invalid value for bool option: maybe"),
        ("--strict-model-config=maybe", "invalid value for bool option: maybe"),
        ("--strict-model-config=maybe", "Warning: '--strict-model-config' has been deprecated!"),
        ("--trace-level=x", "invalid value for trace level option: x"),
        ("--trace-level=x", "Warning: '--trace-level' has been deprecated and will be removed in"),
        ("--trace-count=x", "Please use '--trace-config count=<count value> instead."),
        ("stray", "Unexpected argument: stray"),
        (
            "--metrics-config=a,b=c",
            "--metrics-config option format is <setting>=<value>. Got a,b=c",
        ),
    ],
)
def test_a_refusal_says_what_the_real_one_says(
    oracle_installed: None, capsys: pytest.CaptureFixture[str], argument: str, reason: str
):
    assert reason in tritonserver(argument)
    with pytest.raises(SystemExit) as exited:
        cli.main([argument])
    assert exited.value.code == 1
    assert reason in capsys.readouterr().err
