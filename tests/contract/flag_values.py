"""Every flag of tritonserver with many values: whether the server accepts it, or its reason.

    PYTHONPATH=.:tests python -m contract.flag_values     record the real server's answers again

The recording has the reason of the real server's refusal by argument; "" means that the argument is
accepted. If a flag is given twice, both arguments are joined by a blank.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from contract.recordings import FOLDER
from support.servers import ROOT

RECORDING = FOLDER / "flags.json"
#: The reason if all arguments are accepted: the server then lacks a repository.
_STARTS = "error: creating server"
_VALUES = ("true", "FALSE", "0", "-1", "", "10s", " 7", "+5", "1.5", "0x10", "abc", "4294967296")
#: Further values for flags whose values have a format.
_FORMED = {
    "--trace-config": (
        *("rate=1", "rate=1,level=TIMESTAMPS", "opentelemetry,url=127.0.0.1:1,mode=x", "a,b,c=d"),
        *("mode=opentelemetry", "mode=x", "mode,x=1", "level=TIMESTAMPS,x", ",rate=1", "rate=,1"),
        *("triton,file=a,b=c", "triton,file", "TRITON,rate=1", "x,rate=1", "level=x", "a=b=c"),
        *("rate=x", "rate=0", "rate=-1", "rate=1.5", "count=x", "count=-2", "triton,file="),
        *("triton,log-frequency=x", "triton,level=OFF", "opentelemetry,resource=a=b", "level="),
    ),
    "--backend-config": ("a=b", "a,b=c", ",a=b", "a,b", "a,=b", "a,b=", "a,b,c=d", "a=b,c=d"),
    "--cache-config": ("a=b", ",a=b", "a,b", "local,size", "a,=b", "local,size=9,a=b"),
    "--metrics-config": ("a=b", "a,b=c", "a=", "=b", "a=b,c", "a=b=c"),
    "--http-restricted-api": ("health:a=b", "health", "x:a=b", "health:a", "health:=b", ":a=b"),
    "--grpc-restricted-protocol": ("health:a=b", "health", "x:a=b", "health:a", "health,trace:a=b"),
    "--rate-limit-resource": ("a:1", "a", "a:1:2", "a:1:2:3", "a:x", "a:1:x", ":1", "a:-1"),
    "--rate-limit": ("off", "execution_count", "OFF"),
    "--model-control-mode": ("none", "POLL", "explicit", "x"),
    "--log-format": ("default", "ISO8601", "iso8601", "DEFAULT"),
    "--grpc-infer-response-compression-level": ("none", "LOW", "medium", "high", "x"),
    "--host-policy": ("a,b=c", "a,b", "a=b", ",b=c"),
    "--cuda-memory-pool-byte-size": ("0:1", "0", "0:x", "x:1", "0:1:2"),
    "--cuda-virtual-address-size": ("0:1", "0", "0:x"),
    "--model-load-gpu-limit": ("0:0.5", "0:2", "0", "x:1"),
    "--http-header-forward-pattern": ("a.*", "(", "[", "*"),
    "--grpc-header-forward-pattern": ("a.*", "(", "["),
    "--sagemaker-safe-port-range": ("1-2", "2-1", "1", "a-b"),
}


def flags() -> list[str]:
    """Return the flags of the real server's help."""
    return re.findall(r"^  (--[a-z0-9-]+) ?.*$", said(["--help"]), re.MULTILINE)


def arguments(flag: str) -> Iterator[str]:
    yield flag
    values = (*_FORMED.get(flag, ()), *_VALUES)
    for value in values:
        yield f"{flag}={value}"
    yield f"{flag}={values[0]} {flag}={values[0]}"
    yield f"{flag}={values[0]} {flag}={values[1]}"


def said(given: list[str]) -> str:
    """Return the real server's output for arguments with which it exits immediately."""
    command = [sys.executable, str(ROOT / "tools" / "oracle.py"), "serve", *given]
    with tempfile.TemporaryDirectory() as folder:  # --log-file writes there
        try:
            ended = subprocess.run(
                command, capture_output=True, cwd=folder, timeout=15, errors="replace"
            )
        except subprocess.TimeoutExpired:
            return _STARTS
    return ended.stdout + ended.stderr


def split(argument: str) -> list[str]:
    """Return the command-line arguments of an entry in the recording."""
    return re.split(r" (?=--)", argument)


def reason(argument: str) -> str:
    """Return the reason of the real server's refusal."""
    printed = said(split(argument))
    if _STARTS in printed:
        return ""
    *_, text = printed.strip().rpartition('".\n')
    return text.strip().removesuffix("see --help for all options").strip()[-300:]


def _record() -> None:
    rows = [
        argument
        for flag in flags()
        if flag not in ("--help", "--model-repository", "--model-store")
        for argument in arguments(flag)
    ]
    with ThreadPoolExecutor(3) as threads:
        table = dict(zip(rows, threads.map(reason, rows), strict=True))
    RECORDING.write_text(json.dumps(table, indent=0) + "\n")
    print(f"{len(table)} rows, {sum(map(bool, table.values()))} refused")


if __name__ == "__main__":
    _record()
