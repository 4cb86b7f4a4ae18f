"""Numbers on pages: each is computed here from an option, a constant or a measured result."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import pytest
from support.servers import ROOT

from reference_server import watching
from reference_server.backends.archives import Limits
from reference_server.backends.process_host.instance import Backoff
from reference_server.backends.process_host.memory import LIMIT_BYTES
from reference_server.codecs import bodies
from reference_server.command import cli
from reference_server.core import backlog, gil
from reference_server.core.profiles import NEWEST, V2_51
from reference_server.frontends.grpc import session
from reference_server.observability import incidents, logs, spans
from reference_server.shared_memory import region
from triton_replay.recording import recorder

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def page(name: str) -> str:
    return (ROOT / name).read_text()


def options() -> dict[str, object]:
    parser = cli.command_line.new_parser()
    return {name: each.default for each in parser._actions for name in each.option_strings}


def numbers(table: str) -> Iterator[tuple[str, list[float]]]:
    """The first cell of each row of a table, and the numbers of the others."""
    for first, *others in re.findall(r"^\| (.*?) \| (.*) \|$", table, re.M):
        found = [cell.replace(",", "") for cell in others[0].split(" | ")]
        if all(re.fullmatch(r"[\d.]+( s)?", cell) for cell in found):
            yield first, [float(cell.removesuffix(" s")) for cell in found]


def section(name: str, title: str) -> str:
    return page(name).split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


#: What a table says of a default that is no literal.
IN_WORDS = {
    "--http-max-input-size": "67108864",  # of the newest release: checked below
    "--grpc-max-connection-age": "unlimited",
    "--grpc-max-response-pool-size": str(backlog.MOST_RESPONSES),
    "--connection-memory-mib": "half of the memory",
}


def test_the_tables_of_options_have_their_defaults():
    known = options()
    compared = 0
    for title in ("HTTP", "gRPC", "Time limits"):
        rows = re.findall(r"^\| (`--[^|]*)\| ([^|]*)\|", section("docs/server.md", title), re.M)
        for names, shown in rows:
            defaults = [each.strip().removesuffix(" ms") for each in shown.split(",")]
            for name, default in zip(re.findall(r"`(--[\w-]+)", names), defaults, strict=False):
                value = known[name]
                text = f"{value:g}" if isinstance(value, float) else str(value).lower()
                written = "" if value in ("", [], None) else text
                assert IN_WORDS.get(name, written) == default, name
                compared += 1
    assert compared > 25


def test_what_the_overview_says_of_the_speed_is_in_the_tables():
    text = " ".join(page("docs/performance.md").split())
    ratios = [each for _, row in numbers(section("docs/performance.md", "Current results"))
              for each in row]  # fmt: skip
    assert f"handles {min(ratios):.2f} to {max(ratios):.2f} times" in page("README.md")
    rows = dict[tuple[str, int], float]()
    cpu = dict[tuple[str, int], float]()
    for name, row in numbers(section("docs/results/performance.md", "All rows")):
        rows[name.strip("`"), int(row[0])], cpu[name.strip("`"), int(row[0])] = row[3], row[4]
    faster = sum(ratio > 1 for ratio in rows.values())
    assert f"In {faster} of [{len(rows)} rows]" in text
    assert sum(1.3 <= ratio <= 2 for ratio in rows.values()) > len(rows) / 2
    assert f"its own process ({rows['process', 8]} times)" in text
    assert f"8 requests in flight ({rows['json-uneven', 8]} times)" in text
    assert 1.8 < cpu["process", 8] / cpu["http", 8] < 2.2  # "doubles the CPU time"
    busy = section("docs/results/performance.md", "A model that computes for 50 ms")
    held = dict(numbers(re.sub(r" \| (inline|process) \| ", r", \1 | ", busy)))
    health, other = held["a C call that holds the GIL, inline"]
    assert f"raises their p99 to {health:.0f} and {other:.0f} ms" in text
    assert max(held["a C call that holds the GIL, process"]) < 1
    starts = section("docs/results/performance.md", "Start and idle memory")
    assert float(re.findall(r"^\| reference \| 1 \| ([\d.]+) s", starts, re.M)[0]) < 1


PYTHONS = re.findall(r"each Python from (3\.\d+) to (3\.\d+)", page("Makefile"))[0]
STATEMENTS = [
    ("README.md", f"Python {PYTHONS[0]} to {PYTHONS[-1]}"),
    ("README.md", f"behaves like Triton {NEWEST.version.rpartition('.')[0]}, the newest"),
    ("README.md", f"real tritonserver {V2_51.version.rpartition('.')[0]} and"),
    (
        "docs/server.md",
        f"expand to {bodies._FREE_BYTES // MIB} MiB or {bodies._LARGEST_RATIO} times",
    ),
    ("docs/server.md", f"shows the last {logs.LogTail._MAX_LINES} log lines"),
    ("docs/server.md", f"late by more than {incidents._LATE_S * 1000:.0f} ms"),
    ("docs/server.md", f"`--execution-warning-secs` ({options()['--execution-warning-secs']:g};"),
    ("docs/repositories.md", f"`--repository-poll-secs` ({options()['--repository-poll-secs']:g})"),
    ("docs/server.md", f"at {backlog._LIMIT // MIB} MiB of unread responses"),
    ("docs/server.md", f"until {backlog._LIMIT // MIB} MiB of a stream's responses are unread"),
    ("docs/server.md", f"requests of more than {session._COUNTED // KIB} KiB"),
    ("docs/server.md", f"keep freed blocks up to {cli._KEPT_BYTES // MIB} MiB"),
    ("docs/server.md", f"more than {gil.SHARED_BYTES // MIB} MiB in total are copied outside"),
    ("docs/server.md", f"up to {region._MOST_IDLE // MIB} MiB of memory"),
    ("docs/hosts.md", f"grows up to {LIMIT_BYTES // GIB} GiB per direction"),
    (
        "docs/hosts.md",
        f"{Limits().content_bytes // GIB} GiB of content and {Limits().entries:,} entries",
    ),
    ("docs/hosts.md", f"restarted after {Backoff().ended(0) / 1e9} s."),
    (
        "docs/hosts.md",
        f"up to {inspect.signature(Backoff).parameters['limit_s'].default:.0f} s. It is",
    ),
    ("docs/server.md", f"metrics port (default: {watching._METRICS_PORT} of the same host"),
    ("docs/server.md", f"(default: 127.0.0.1:{watching._parser().get_default('port')})"),
    ("docs/observing.md", f"at most {spans._CLOSE_S:.0f} seconds"),
    ("docs/replay.md", f"too slow ({recorder.MAX_WAITING // MIB} MiB may wait)"),
]


@pytest.mark.parametrize(("name", "sentence"), STATEMENTS)
def test_a_page_states_the_limits_of_the_code(name: str, sentence: str):
    assert sentence in " ".join(page(name).split())
