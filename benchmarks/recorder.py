"""What `triton-replay record` costs: the same load without it, through a relay that reads nothing,
and through the recorder, in turns.

    PYTHONPATH=replay python -m benchmarks.recorder --server localhost:8000 --model add_sub

The relay shows what any process between client and server costs, on this machine. perf_analyzer
sends 1,000 requests per second over HTTP; `make oracle` installs it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import csv
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import uvloop

from benchmarks.instruments import print_table
from triton_replay.addresses import Address, parse_address
from triton_replay.recording.proxy import Proxy

ROOT = Path(__file__).resolve().parent.parent
PERCENTILES = ("p50", "p90", "p99")


class Nothing:
    """A tap that does not read."""

    def sent(self, data: bytes) -> None: ...

    def answered(self, data: bytes) -> None: ...

    def closed(self, by: str) -> None: ...


async def relay(server: Address) -> None:
    bound = await Proxy(server, print, Nothing).listen(Address("127.0.0.1", 0))
    print(f"relaying at {bound} into nothing", file=sys.stderr, flush=True)
    await asyncio.Event().wait()


@contextlib.contextmanager
def started(*words: str) -> Iterator[tuple[int, str]]:
    """A process between client and server: its id, and where it listens."""
    process = subprocess.Popen([sys.executable, "-m", *words], stderr=subprocess.PIPE, text=True)
    try:
        line = process.stderr.readline()
        yield process.pid, line.split(" at ")[1].split(" into ")[0]
    finally:
        process.terminate()
        process.communicate()


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(address: str, given: argparse.Namespace) -> dict[str, float]:
    """What perf_analyzer saw: requests per second, and milliseconds by percentile."""
    with tempfile.NamedTemporaryFile(suffix=".csv") as file:
        words = [sys.executable, str(ROOT / "tools" / "oracle.py"), "perf", "-i", "http"]
        words += ["-u", address, "-m", given.model, "-f", file.name]
        words += ["--request-rate-range", str(given.rate), "-s", "999", "--max-threads", "4"]
        words += ["--measurement-interval", str(given.window), *given.more]
        subprocess.run(words, check=True, capture_output=True)
        (row,) = csv.DictReader(Path(file.name).read_text().splitlines())
    found = {name: float(row[f"{name} latency"]) / 1000 for name in PERCENTILES}
    return {"per second": float(row["Inferences/Second"]), **found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", default="localhost:8000")
    parser.add_argument("--model", default="add_sub")
    parser.add_argument("--rate", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--window", type=int, default=500, help="ms; three make a measurement")
    parser.add_argument("--relay", action="store_true", help=argparse.SUPPRESS)
    given, given.more = parser.parse_known_args()
    if given.relay:
        uvloop.run(relay(parse_address(given.server, "--server")))
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        record = ("triton_replay", "record", "--listen=127.0.0.1:0", f"--output={folder}/a.trc")
        relaying = ("benchmarks.recorder", "--relay")
        between = {
            name: stack.enter_context(started(*words, f"--server={given.server}"))
            for name, words in (("relay", relaying), ("recorder", record))
        }
        addresses = {"direct": given.server} | {name: at for name, (_, at) in between.items()}
        found = defaultdict(list)
        cpu = defaultdict(float)
        for turn in range(given.rounds):
            names = list(addresses)
            for name in names[turn % 3 :] + names[: turn % 3]:
                before = cpu_seconds(between[name][0]) if name in between else 0.0
                found[name].append(measure(addresses[name], given))
                if name in between:
                    cpu[name] += cpu_seconds(between[name][0]) - before
    columns = ("per second", *PERCENTILES)
    rows = []
    for name, runs in found.items():
        cells = [f"{median(run[column] for run in runs):.2f}" for column in columns]
        pairs = zip(runs, found["direct"], strict=True)
        more = median(run["p50"] - plain["p50"] for run, plain in pairs)
        used = f"{cpu[name] / given.rounds:.2f}" if name in cpu else ""
        rows.append([name, *cells, f"{more:+.3f}", used])
    print_table(["", *columns, "p50 more", "CPU s a run"], rows)


if __name__ == "__main__":
    main()
