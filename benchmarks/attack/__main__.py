"""Attack the reference server and the real tritonserver, and report what bystanders notice.

    python -m benchmarks.attack                          ten minutes, as `make campaign`
    python -m benchmarks.attack --hours 8                plus eight hours of the attack `endurance`
    python -m benchmarks.attack --only smuggling --sides inline process
    python -m benchmarks.attack --replay tests/campaign/reduced/live_http/0123456789ab

During an attack a bystander sends valid requests over HTTP and gRPC and checks every response.
Columns: `lost` counts the bystander's requests without a response, `refused` its error responses,
`wrong` its responses with wrong content; `ms` is the time of a round of four requests. `MiB`, `fds`
and `threads` are the growth of the server and its processes after the attack. The last table is for
docs/results/campaign.md. Runs with the same --seed send the same bytes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.attack import (
    ROOT,
    clients,
    conditions,
    handles,
    keep,
    mutators,
    neighbours,
    programs,
    reduced,
)
from benchmarks.attack.floods import FLOODS, flood
from benchmarks.attack.ground import ALL_BUT_ASGI, SIDES, Ground, models, started
from benchmarks.attack.mutators import endurance, smuggling
from benchmarks.attack.watching import HEADINGS, Facts, Noticed, Row, bystander, facts, table
from benchmarks.instruments import print_machine_facts
from tests.support.servers import Flag, Server, ServerFailed
from tools import oracle

SETTLED_S = 15.0
MOST_MIB = 1_000.0
"""Memory growth up to this counts as cached, not as leaked."""
MEASURED = ("-m", "benchmarks.attack.programs", "callbacks")
RESULTS = ROOT / ".cache" / "campaign.json"


@contextlib.contextmanager
def no_flags() -> Iterator[Mapping[str, Flag]]:
    """Yield no flags."""
    yield {}


@dataclass(frozen=True)
class Attack:
    """An attack and its permitted effects."""

    run: Callable[[Ground], str]
    seconds: float = 3.0
    alone: bool = False
    """True if it needs a server of its own."""
    may_lose: bool = False
    """True if requests of the bystander may fail."""
    may_trace: bool = False
    """True if the log may contain tracebacks."""
    ends: bool = False
    """True if the server is expected to exit."""
    flags: Mapping[str, Flag] = field(default_factory=dict)
    with_flags: Callable[[], contextlib.AbstractContextManager[Mapping[str, Flag]]] = no_flags
    """Yields further flags, and holds their resources as long as the server runs."""
    transport: str = "plain"
    """The bystander's gRPC: plain, tls, or an empty string for none."""
    only: tuple[str, ...] = ALL_BUT_ASGI
    models: Callable[[], contextlib.AbstractContextManager[Path]] | None = None
    """A separate repository for this attack; implies `alone`."""

    @property
    def name(self) -> str:
        """Return the name on the command line."""
        return self.run.__name__


def disk_full(ground: Ground) -> str:
    """Log lines that cannot be written because the disk is full."""
    return mutators.mutated_requests(ground)


def clock_jumps(ground: Ground) -> str:
    """A wall clock that jumps by a day every second."""
    time.sleep(ground.seconds)
    return "-"


_OVER_HTTP = (
    *("nothing", "events_unread", "tiny_events_unread", "gets_unread", "endless_header"),
    *("endless_headers", "endless_url", "tiny_chunks", "gzip_bomb", "long_json", "nested_json"),
    "long_json_answer",
)
"""Floods that an ASGI server can receive."""

ATTACKS = {
    attack.name: attack
    for attack in (
        *(
            Attack(flood(name), only=SIDES if name in _OVER_HTTP else ALL_BUT_ASGI)
            for name in FLOODS
        ),
        Attack(mutators.mutated_requests, 6, only=SIDES),
        Attack(mutators.mutated_bytes, 6),
        Attack(mutators.mutated_calls, 6),
        Attack(mutators.mutated_frames, 6),
        Attack(smuggling),
        Attack(clients.slow_writers, only=SIDES),
        Attack(clients.bodies_stalled, only=SIDES),
        Attack(clients.slow_readers, only=SIDES),
        Attack(clients.leaving, only=SIDES),
        Attack(clients.memory_cut, alone=True),
        Attack(clients.model_processes_killed, alone=True, may_lose=True),
        Attack(clients.model_processes_stopped, alone=True, may_lose=True),
        Attack(
            neighbours.model_processes_lie,
            10,
            alone=True,
            may_trace=True,  # for calls that no model can make
            only=("process",),
            models=neighbours.with_liar,
        ),
        Attack(
            neighbours.service_clients_rude,
            10,
            alone=True,
            only=("inline", "process"),
            models=neighbours.with_service,
        ),
        Attack(handles.handles_forged, 10, alone=True, models=handles.with_handles),
        Attack(clients.server_stopped, alone=True),
        Attack(clients.server_killed, alone=True, may_lose=True, ends=True),
        Attack(clients.descriptors_exhausted, alone=True),
        Attack(clients.memory_exhausted, alone=True, may_lose=True),
        Attack(disk_full, alone=True, flags={"log_verbose": "1", "log_file": "/dev/full"}),
        Attack(clock_jumps, alone=True, only=("inline", "process")),
        Attack(conditions.tls_stalled, alone=True, with_flags=conditions.with_tls, transport="tls"),
        Attack(conditions.content_types),
        Attack(
            conditions.cache_keys,
            alone=True,
            flags=conditions.CACHE,
            models=conditions.with_cached,
            only=SIDES,
        ),
        Attack(
            conditions.collector_silent, alone=True, with_flags=conditions.with_silent_collector
        ),
        Attack(conditions.collector_dead, alone=True, with_flags=conditions.with_dead_collector),
        Attack(conditions.shm_full, alone=True, with_flags=conditions.with_own_shm, may_lose=True),
        Attack(conditions.disk_filled, alone=True, with_flags=conditions.with_own_disk),
        Attack(
            conditions.device_service_killed,
            10,
            alone=True,
            only=("inline", "process"),
            models=neighbours.with_service,
        ),
        Attack(conditions.web_pages, alone=True, flags=conditions.EXPLICIT),
        Attack(endurance, 40),
    )
}


def attacked(attack: Attack, ground: Ground) -> Row:
    """Run an attack beside a bystander and return the result."""
    server = ground.server
    before, logged = facts(server), len(server.log)
    failures: list[str] = []
    did = "-"
    transport = "" if ground.side == "asgi" else attack.transport
    with bystander(server, transport) as noticed:
        try:
            did = attack.run(ground)
        except mutators.Harm as harm:
            failures.append(str(harm))
            failures += _reduced(harm, ground) if ground.side != "triton" else []
        except Exception as error:
            failures.append(f"{type(error).__name__}: {error}"[:300])
    ended = server.process.poll() is not None
    after = before if ended else _settled(server, before)
    grown = Facts(
        after.mib - before.mib,
        after.descriptors - before.descriptors,
        after.threads - before.threads,
        after.processes - before.processes,
    )
    checks = {
        f"the server exited with {server.process.poll()}": ended and not attack.ends,
        f"wrong responses: {noticed.wrong[:1]}": bool(noticed.wrong),
        "requests without a response": bool(noticed.lost) and not attack.may_lose,
        "requests with an error response": bool(noticed.refused) and not attack.may_lose,
        "a traceback in the log": "Traceback (most recent" in server.log[logged:]
        and not attack.may_trace,
        f"callbacks of the loop: {_long_callbacks(server.log[logged:])}": programs.MARK
        in server.log[logged:],
        "more memory than before": grown.mib > MOST_MIB,
        "more descriptors than before": grown.descriptors > 4 and not attack.may_lose,
    }
    failures += [text for text, holds in checks.items() if holds]
    return Row(attack.name, ground.side, did, noticed, grown, failures)


def _long_callbacks(log: str) -> str:
    """Return the number of reported callbacks, and the first of them."""
    lines = [line for line in log.splitlines() if line.startswith(programs.MARK)]
    return f"{len(lines)}, such as {lines[0][:200]}" if lines else ""


def _settled(server: Server, before: Facts) -> Facts:
    """Return the server's resources once they are back at their former level, or after 15 s."""
    end = time.monotonic() + SETTLED_S
    while True:
        after = facts(server)
        calm = after.descriptors <= before.descriptors and after.mib <= before.mib + MOST_MIB
        if calm or time.monotonic() > end:
            return after
        time.sleep(0.25)


def _reduced(harm: mutators.Harm, ground: Ground) -> list[str]:
    """Reduce the bytes of a failed connection on new servers, and keep them for the tests."""

    def fails(sent: bytes) -> bool:
        with started(ground.side, ground.repository) as server:
            return replayed(server, harm.kind, sent) is not None

    if not fails(harm.sent):
        path = RESULTS.with_name(f"campaign-{harm.kind}.bytes")
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(harm.sent)
        return [f"not reproduced on a new server; bytes in {path.relative_to(ROOT)}"]
    small = reduced(harm.sent, fails, most_trials=100)
    return [f"kept as {keep(f'live_{harm.kind}', small).relative_to(ROOT)}"]


def replayed(server: Server, kind: str, sent: bytes) -> str | None:
    """Send a connection's bytes and return the failure that they caused, or None."""
    address = {"http": server.http, "grpc": server.grpc}[kind]
    try:
        mutators.CHECKS[kind](address, sent)
    except Exception as error:
        return str(error)
    if "Traceback (most recent" in server.log:
        return "a traceback in the log"
    time.sleep(0.05)
    if server.process.poll() is not None:
        return f"the server exited with {server.process.poll()}"
    return None


@contextlib.contextmanager
def _serving(
    attack: Attack, side: str, folder: Path, options: argparse.Namespace
) -> Iterator[Server]:
    """Start a server for this attack alone."""
    more: dict[str, Any] = {}
    if attack.run is clock_jumps:
        more["program"] = ("-m", "benchmarks.attack.programs", "clock")
    elif options.callbacks and side != "triton":
        more["program"] = MEASURED
    flags = attack.flags
    with attack.with_flags() as held, started(side, folder, **flags, **held, **more) as server:
        try:
            yield server
        finally:
            if server.process.poll() is not None:
                server.process.wait()


def campaign(names: list[str], side: str, options: argparse.Namespace) -> Iterator[Row]:
    """Yield the results of one side. After a failure the next attack gets a new server."""
    with models() as folder, contextlib.ExitStack() as stack:
        shared: Server | None = None
        for name in names:
            attack = ATTACKS[name]
            if side not in attack.only:
                continue
            seconds = attack.seconds * options.scale
            if attack.run is endurance:
                seconds += 3600 * options.hours
            dice = random.Random(f"{options.seed} {name}")
            if attack.alone:
                own = attack.models or (lambda: contextlib.nullcontext(folder))
                try:
                    with own() as its, _serving(attack, side, its, options) as server:
                        row = attacked(attack, Ground(side, server, its, dice, seconds))
                except ServerFailed as error:
                    text = str(error).splitlines()[1][:200]
                    row = Row(name, side, "-", Noticed(), Facts(0, 0, 0, 0), [text])
            else:
                if shared is None or shared.process.poll() is not None:
                    stack.close()
                    measured = options.callbacks and side != "triton"
                    more = {"program": MEASURED} if measured else {}
                    shared = stack.enter_context(started(side, folder, **more))
                row = attacked(attack, Ground(side, shared, folder, dice, seconds))
                if row.failures:
                    with contextlib.suppress(ServerFailed):
                        stack.close()
                    shared = None
            yield row


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.attack",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    attacks, sides = list(ATTACKS), list(SIDES)
    parser.add_argument("--only", nargs="+", choices=ATTACKS, default=attacks, help="attacks (all)")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=sides, help="servers (all)")
    parser.add_argument("--seed", type=int, default=1, help="seed of all random choices (1)")
    parser.add_argument("--hours", type=float, default=0, help="hours added to `endurance` (0)")
    parser.add_argument("--scale", type=float, default=1, help="factor for all durations (1)")
    parser.add_argument(
        "--callbacks", action="store_true", help="fail if the event loop runs a callback for long"
    )
    parser.add_argument("--replay", type=Path, help="send this saved input to a new server")
    options = parser.parse_args()
    if options.replay:
        kind = options.replay.parent.name.removeprefix("live_")
        with models() as folder, started(options.sides[0], folder) as server:
            print(replayed(server, kind, options.replay.read_bytes()) or "no failure")
        return
    if "triton" in options.sides and not oracle.is_installed():
        raise SystemExit(
            "tritonserver is not installed; run `make oracle`, or use --sides inline process"
        )
    print_machine_facts()
    print(f"seed     {options.seed}\n")
    print(*HEADINGS, sep="  ")
    rows = []
    for side in options.sides:
        for row in campaign(options.only, side, options):
            print(*row.cells(), sep="  ", flush=True)
            rows.append(row)
    print()
    rows.sort(key=lambda row: (list(ATTACKS).index(row.attack), SIDES.index(row.side)))
    RESULTS.parent.mkdir(exist_ok=True)
    results = [dict(zip(HEADINGS, row.cells(), strict=True), failures=row.failures) for row in rows]
    RESULTS.write_text(json.dumps({"seed": options.seed, "rows": results}, indent=1))
    print(*table(results), sep="\n")
    sys.exit(any(row.failures for row in rows if row.side != "triton"))


if __name__ == "__main__":
    main()
