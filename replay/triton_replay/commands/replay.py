"""`triton-replay replay`: send a capture's requests again and record the responses."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from triton_replay.addresses import Server, look_for_server
from triton_replay.capture.files import Capture, CaptureWriter, read_capture
from triton_replay.capture.records import Traffic
from triton_replay.commands.common import (
    NAME_OPTIONS,
    add_headers,
    add_rules,
    clock_from_now,
    headers_of,
    names_of,
    opening,
    print_message,
    run_loop,
)
from triton_replay.commands.filtering import add_filter_options, filter_of
from triton_replay.commands.tls import add_tls, server_of
from triton_replay.errors import CaptureIncomplete, ReplayError, ServerUnreachable
from triton_replay.recording.recorder import Recorder
from triton_replay.recording.redaction import Redaction
from triton_replay.replaying.plan import Plan, plan_replay
from triton_replay.replaying.player import Outcome, Player

MAX_WAITING: Final = 2**30
"""Largest total size of queued bodies, in bytes. Request bodies are mapped from the capture."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `replay`."""
    add = parser.add_argument
    add("capture", metavar="CAPTURE", type=Path, help="the capture with the requests")
    http_help, grpc_help = (
        f"address for {name}; default: %(default)s" for name in ("HTTP", "gRPC")
    )
    add("--server", metavar="HOST:PORT", default="127.0.0.1:8000", help=http_help)
    add("--grpc-server", metavar="HOST:PORT", default="127.0.0.1:8001", help=grpc_help)
    output_help = "the capture of the responses; must not exist"
    add("--output", metavar="FILE", type=Path, required=True, help=output_help)
    add(
        "--speed",
        default="1",
        help="factor of the recorded speed, or max: without pauses; default: 1",
    )
    add(
        "--loop",
        choices=("auto", "open", "closed"),
        default="auto",
        help="open: requests at their recorded times; closed: each after the previous response of "
        "its connection and the recorded think time; auto: closed if the recorded clients sent "
        "three of four requests right after a response; default: auto",
    )
    add_headers(add, timeout=300)
    add_rules(add, NAME_OPTIONS)
    add_tls(parser)
    add_filter_options(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command.

    Returns:
        0 if all requests have a response, with any status.

    Raises:
        ReplayError: A file or an option is invalid, or no request can be sent.
        ServerUnreachable: Some requests have no response.
    """
    server = server_of(args, "--server", "--grpc-server")
    speed, headers = _speed(args.speed), headers_of(args)
    capture = filter_of(args).apply(read_capture(args.capture))
    if capture.complaint:
        print_message(capture.complaint)
    names = names_of(args)
    names.check(capture.exchanges)
    plan = plan_replay(map(names.renamed, capture.exchanges), speed, args.loop)
    if not plan.steps:
        raise ReplayError(f"{args.capture}: no request that can be sent")
    new_player = partial(Player, plan, server, headers=headers, timeout=args.timeout, speed=speed)
    run_loop(_replay(args, capture, plan, server, new_player))
    return 0


async def _replay(
    args: argparse.Namespace,
    capture: Capture,
    plan: Plan,
    server: Server,
    new_player: Callable[[Callable[[], int], Callable[[Traffic], None]], Player],
) -> None:
    protocols = {step.exchange.request.protocol for step in plan.steps}
    servers = {"http": server.http, "grpc": server.grpc}
    options = {"http": "--server", "grpc": "--grpc-server"}
    for protocol in sorted(protocols):
        look_for_server(servers[protocol], options[protocol])
    first = servers["http" if "http" in protocols else "grpc"]
    writer = CaptureWriter.create(args.output)
    settings = {**capture.opening.settings, "replay_of": capture.name, "speed": args.speed}
    settings["loop"] = "closed" if plan.closed else "open"
    writer.write([opening(first, settings)])
    clock = clock_from_now()
    loop, stop = asyncio.get_running_loop(), asyncio.Event()

    def end_early(_: str) -> None:
        # Responses that cannot be recorded are of no use.
        loop.call_soon_threadsafe(stop.set)

    # Names that the recording kept are kept again, so that the targets of both captures are equal.
    kept = capture.opening.settings.get("keep_headers")
    kept = frozenset(str(name).lower() for name in kept) if isinstance(kept, list) else ()
    recorder = Recorder(
        writer,
        clock,
        redaction=Redaction(kept=kept),
        max_waiting=MAX_WAITING,
        on_end=end_early,
    )
    player = new_player(clock, recorder.put)
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    recorder.start()
    outcome, cut_short = player.outcome, ""
    try:
        if not await _play(player, stop):
            done = outcome.statuses.total() + outcome.unanswered.total()
            cut_short = f"interrupted after {done} of {len(plan.steps)} requests"
    finally:
        recorder.close(cut_short, outcome.lateness)
    _report(plan, outcome, clock() / 1e9, args.output)
    if outcome.unanswered:
        lost = outcome.unanswered.total()
        names = " and ".join(str(servers[protocol]) for protocol in sorted(protocols))
        reasons = "; ".join(
            f"{count} times {reason}" for reason, count in outcome.unanswered.items()
        )
        raise ServerUnreachable(
            f"{names}: {lost} of {len(plan.steps)} requests have no response: {reasons}"
        )
    if recorder.counts:
        lost = recorder.counts.total()
        raise CaptureIncomplete(f"{args.output}: {', '.join(recorder.counts)}: {lost} are missing")


async def _play(player: Player, stop: asyncio.Event) -> bool:
    """Play until the end or until `stop` is set; return whether all requests were sent."""
    playing = asyncio.ensure_future(player.play())
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait((playing, stopping), return_when=asyncio.FIRST_COMPLETED)
    whole = playing.done()
    for task in (playing, stopping):
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await playing
    return whole


def _report(plan: Plan, outcome: Outcome, seconds: float, output: Path) -> None:
    answers = ", ".join(f"{count} with {status}" for status, count in outcome.statuses.items())
    loop = "closed" if plan.closed else "open"
    print_message(
        f"{len(plan.steps)} requests in {seconds:.1f} s ({loop} loop), responses: "
        f"{answers or 'none'}"
    )
    print_message(f"responses in {output}")
    for reason, count in plan.left_out.items():
        print_message(f"not sent: {count} {reason}")
    late = outcome.lateness
    if late["late"]:
        print_message(
            f"{late['late']} of {late['requests']} requests were sent 10 to "
            f"{late['largest'] / 1e6:.0f} ms late: this machine is too busy for the load"
        )


def _speed(text: str) -> float | None:
    if text == "max":
        return None
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not 0 < speed < 1e9:
        raise ReplayError(f"--speed: found {text!r}, expected a number above 0, or max")
    return speed
