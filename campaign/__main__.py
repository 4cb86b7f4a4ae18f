"""Attack the servers and print what became of them, ours beside the real one.

    python -m campaign                                   ten minutes, as `make campaign`
    python -m campaign --hours 8                         the same, and endurance for eight hours
    python -m campaign --only smuggling --sides inline process
    python -m campaign --replay tests/campaign/reduced/live_http/0123456789ab

While a server is attacked a bystander asks it over HTTP and gRPC, and knows what must come back.
`lost` are its requests that were not answered, `refused` those answered with an error of the
server's, `wrong` answers that are not those to its questions; `ms` is the time of a round of four
requests. `MiB`, `fds` and `threads` are what the server and its processes hold more once the attack
is over. At the end comes the table of docs/results/campaign.md: p99, MiB, and lost requests. The
attacks are the same in every run with the same --seed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.bystanders import ATTACKS as FLOODS
from benchmarks.instruments import percentile, print_machine_facts
from campaign import ROOT, clients, handles, hardship, mutators, neighbours, page
from campaign.endurance import endurance
from campaign.ground import SIDES, Ground, models, started
from campaign.reducing import keep, reduced
from campaign.smuggling import smuggling
from campaign.watching import Facts, Noticed, bystander, facts
from tests.support.servers import Server, ServerFailed
from tools import oracle

SETTLED_S = 15.0
MOST_MIB = 1_000.0
"""That a server may hold more after an attack; it keeps what it has once needed."""
RESULTS = ROOT / ".cache" / "campaign.json"


@dataclass(frozen=True)
class Attack:
    """One attack, and what it may do to whom."""

    run: Callable[[Ground], str]
    seconds: float = 3.0
    alone: bool = False
    """Whether it has a server of its own."""
    may_lose: bool = False
    """Whether a bystander may be refused, or lose its connection."""
    may_trace: bool = False
    """Whether the log may have tracebacks."""
    ends: bool = False
    """Whether the server is to end."""
    flags: dict[str, str] = field(default_factory=dict)
    only: tuple[str, ...] = SIDES
    models: Callable[[], contextlib.AbstractContextManager[Path]] | None = None
    """Its own repository, if it needs more models; then it has a server of its own, too."""

    @property
    def name(self) -> str:
        """Its name on the command line."""
        return self.run.__name__


def disk_full(ground: Ground) -> str:
    """Log lines that find no room."""
    return mutators.mutated_requests(ground)


def clock_jumps(ground: Ground) -> str:
    """The time of day is set by a day, and back, every second."""
    time.sleep(ground.seconds)
    return "-"


ATTACKS = {
    attack.name: attack
    for attack in (
        *(Attack(clients.flood(name)) for name in FLOODS),
        *(Attack(mutators.mutated_requests, 6), Attack(mutators.mutated_bytes, 6)),
        *(Attack(mutators.mutated_calls, 6), Attack(mutators.mutated_frames, 6)),
        *(Attack(smuggling), Attack(clients.slow_writers), Attack(clients.slow_readers)),
        Attack(clients.leaving),
        Attack(clients.memory_cut, alone=True),
        Attack(hardship.model_processes_killed, alone=True, may_lose=True),
        Attack(hardship.model_processes_stopped, alone=True, may_lose=True),
        Attack(
            *(neighbours.model_processes_lie, 10),
            alone=True,
            may_trace=True,  # of calls that nobody makes so
            only=("process",),
            models=neighbours.with_liar,
        ),
        Attack(
            *(neighbours.service_clients_rude, 10),
            alone=True,
            only=("inline", "process"),
            models=neighbours.with_service,
        ),
        Attack(*(handles.handles_forged, 10), alone=True, models=handles.with_handles),
        Attack(hardship.server_stopped, alone=True),
        Attack(hardship.server_killed, alone=True, may_lose=True, ends=True),
        Attack(hardship.descriptors_exhausted, alone=True),
        Attack(hardship.memory_exhausted, alone=True, may_lose=True),
        Attack(disk_full, alone=True, flags={"log_verbose": "1", "log_file": "/dev/full"}),
        Attack(clock_jumps, alone=True, only=("inline", "process")),
        Attack(endurance, 40),
    )
}


@dataclass
class Row:
    """What became of one server under one attack."""

    attack: str
    side: str
    did: str
    noticed: Noticed
    grown: Facts
    failures: list[str]

    def cells(self) -> list[object]:
        """As printed."""
        times = self.noticed.seconds or [float("nan")]
        return [
            *(self.attack, self.side, self.noticed.answers, self.noticed.refused),
            *(self.noticed.lost, len(self.noticed.wrong)),
            *(f"{1e3 * percentile(times, 99):.0f}", f"{1e3 * max(times):.0f}"),
            *(f"{self.grown.mib:+.0f}", f"{self.grown.descriptors:+d}"),
            *(f"{self.grown.threads:+d}", "; ".join([self.did, *self.failures])),
        ]


HEADINGS = (
    *("attack", "server", "answers", "refused", "lost", "wrong", "p99 ms", "most ms"),
    *("MiB", "fds", "threads", "what it did, and what failed"),
)


def attacked(attack: Attack, ground: Ground) -> Row:
    """Attack, with a bystander; what became of it."""
    server = ground.server
    before, logged = facts(server), len(server.log)
    failures: list[str] = []
    did = "-"
    with bystander(server) as noticed:
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
        f"the server ended with {server.process.poll()}": ended and not attack.ends,
        f"wrong answers: {noticed.wrong[:1]}": bool(noticed.wrong),
        "a bystander lost its connection": bool(noticed.lost) and not attack.may_lose,
        "a bystander was refused": bool(noticed.refused) and not attack.may_lose,
        "a traceback in the log": "Traceback (most recent" in server.log[logged:]
        and not attack.may_trace,
        "more memory than before": grown.mib > MOST_MIB,
        "more descriptors than before": grown.descriptors > 2 and not attack.may_lose,
    }
    failures += [text for text, holds in checks.items() if holds]
    return Row(attack.name, ground.side, did, noticed, grown, failures)


def _settled(server: Server, before: Facts) -> Facts:
    """What it holds once it has let go of the attack, for which it has some seconds."""
    end = time.monotonic() + SETTLED_S
    while True:
        after = facts(server)
        calm = after.descriptors <= before.descriptors and after.mib <= before.mib + MOST_MIB
        if calm or time.monotonic() > end:
            return after
        time.sleep(0.25)


def _reduced(harm: mutators.Harm, ground: Ground) -> list[str]:
    """Make what did harm small, on new servers, and keep it for the suite."""

    def fails(sent: bytes) -> bool:
        with started(ground.side, ground.repository) as server:
            return replayed(server, harm.kind, sent) is not None

    if not fails(harm.sent):
        path = RESULTS.with_name(f"campaign-{harm.kind}.bytes")
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(harm.sent)
        return [f"not so alone; sent: {path.relative_to(ROOT)}"]
    small = reduced(harm.sent, fails, most_trials=100)
    return [f"kept as {keep(f'live_{harm.kind}', small).relative_to(ROOT)}"]


def replayed(server: Server, kind: str, sent: bytes) -> str | None:
    """Send a connection's bytes; what harm they did, if any."""
    address = {"http": server.http, "grpc": server.grpc}[kind]
    try:
        mutators.CHECKS[kind](address, sent)
    except Exception as error:
        return str(error)
    if "Traceback (most recent" in server.log:
        return "a traceback in the log"
    time.sleep(0.05)
    if server.process.poll() is not None:
        return f"the server ended with {server.process.poll()}"
    return None


@contextlib.contextmanager
def _serving(attack: Attack, side: str, folder: Path) -> Iterator[Server]:
    """A server for this attack alone."""
    more: dict[str, object] = {}
    if attack.run is clock_jumps:
        more["program"] = ("-m", "campaign.jumping_clock")
    with started(side, folder, **attack.flags, **more) as server:
        try:
            yield server
        finally:
            if server.process.poll() is not None:
                server.process.wait()


def campaign(names: list[str], side: str, options: argparse.Namespace) -> Iterator[Row]:
    """The rows of one side; a server that ended, or failed, is followed by a new one."""
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
                    with own() as its, _serving(attack, side, its) as server:
                        row = attacked(attack, Ground(side, server, its, dice, seconds))
                except ServerFailed as error:
                    text = str(error).splitlines()[1][:200]
                    row = Row(name, side, "-", Noticed(), Facts(0, 0, 0, 0), [text])
            else:
                if shared is None or shared.process.poll() is not None:
                    stack.close()
                    shared = stack.enter_context(started(side, folder))
                row = attacked(attack, Ground(side, shared, folder, dice, seconds))
                if row.failures:
                    with contextlib.suppress(ServerFailed):
                        stack.close()
                    shared = None
            yield row


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="python -m campaign",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", nargs="+", choices=ATTACKS, default=list(ATTACKS))
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--seed", type=int, default=1, help="of all dice (1)")
    parser.add_argument("--hours", type=float, default=0, help="more of endurance (0)")
    parser.add_argument("--scale", type=float, default=1, help="of the attacks' seconds (1)")
    parser.add_argument("--replay", type=Path, help="send this kept input to a new server")
    options = parser.parse_args()
    if options.replay:
        kind = options.replay.parent.name.removeprefix("live_")
        with models() as folder, started(options.sides[0], folder) as server:
            print(replayed(server, kind, options.replay.read_bytes()) or "no harm")
        return
    if "triton" in options.sides and not oracle.is_installed():
        raise SystemExit(
            "tritonserver is not installed; run `make oracle`, or leave it out: --sides"
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
    told = [dict(zip(HEADINGS, row.cells(), strict=True), failures=row.failures) for row in rows]
    RESULTS.write_text(json.dumps({"seed": options.seed, "rows": told}, indent=1))
    print(*page.table(told), sep="\n")
    sys.exit(any(row.failures for row in rows if row.side != "triton"))


if __name__ == "__main__":
    main()
