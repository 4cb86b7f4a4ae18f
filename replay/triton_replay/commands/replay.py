"""`triton-replay replay`: send a capture's requests again, and write the answers to another."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
from pathlib import Path

from triton_replay.addresses import look_for_server, parse_address
from triton_replay.capture.reader import Capture, read_capture
from triton_replay.capture.writer import CaptureWriter
from triton_replay.clocks import clock_from_now
from triton_replay.commands.common import opening, parse_header, run_loop, tell
from triton_replay.errors import ReplayError, ServerUnreachable
from triton_replay.recording.recorder import Recorder
from triton_replay.replaying.plan import Plan, plan_replay
from triton_replay.replaying.player import Outcome, Player, Target


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of `replay`."""
    add = parser.add_argument
    add("capture", metavar="CAPTURE", type=Path)
    add("--server", metavar="HOST:PORT", default="127.0.0.1:8000", help="default: %(default)s")
    add("--grpc-server", metavar="HOST:PORT", default="127.0.0.1:8001", help="default: %(default)s")
    add("--output", metavar="FILE", type=Path, required=True, help="the capture of the answers")
    add(
        "--speed",
        default="1",
        help="times as quick as it was recorded, or max: no gaps; default: 1",
    )
    add(
        "--header",
        metavar="NAME:VALUE",
        action="append",
        default=[],
        help="send this one, e.g. in the place of a redacted Authorization; may be repeated",
    )
    add(
        "--timeout",
        metavar="SECONDS",
        type=float,
        default=300.0,
        help="give a request up after this time; default: 300",
    )


def run(given: argparse.Namespace) -> int:
    """Replay; 0 if all requests were answered, whatever the answers. Raises ReplayError."""
    server = parse_address(given.server, "--server")
    speed = _speed(given.speed)
    headers = tuple(parse_header(text, "--header") for text in given.header)
    capture = read_capture(given.capture)
    if capture.complaint:
        tell(capture.complaint)
    plan = plan_replay(capture.exchanges, speed)
    if not plan.steps:
        raise ReplayError(f"{given.capture}: holds no request that can be sent")
    grpc_server = parse_address(given.grpc_server, "--grpc-server")
    target = Target(server, grpc_server, headers, given.timeout, speed)
    run_loop(_replay(given, capture, plan, target))
    return 0


async def _replay(given: argparse.Namespace, capture: Capture, plan: Plan, target: Target) -> None:
    protocols = {step.exchange.request.protocol for step in plan.steps}
    servers = {"http": target.http, "grpc": target.grpc}
    options = {"http": "--server", "grpc": "--grpc-server"}
    for protocol in sorted(protocols):
        look_for_server(servers[protocol], options[protocol])
    server = target.http if "http" in protocols else target.grpc
    writer = CaptureWriter.create(given.output)
    settings = {**capture.opening.settings, "replay_of": capture.name, "speed": given.speed}
    writer.write([opening(server, settings)])
    clock = clock_from_now()
    loop, stop = asyncio.get_running_loop(), asyncio.Event()

    def no_room(_: str) -> None:
        # What cannot be written down need not be asked.
        loop.call_soon_threadsafe(stop.set)

    recorder = Recorder(writer, clock, on_end=no_room)
    player = Player(plan, target, clock, recorder.put)
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    recorder.start()
    outcome, cut_short = player.outcome, ""
    try:
        if not await _play(player, stop):
            done = outcome.statuses.total() + outcome.unanswered.total()
            cut_short = f"interrupted after {done} of {len(plan.steps)} requests"
    finally:
        recorder.close(cut_short)
    _report(plan, outcome, clock() / 1e9, given.output)
    if outcome.unanswered:
        lost = outcome.unanswered.total()
        asked = " and ".join(str(servers[protocol]) for protocol in sorted(protocols))
        reasons = "; ".join(
            f"{count} times {reason}" for reason, count in outcome.unanswered.items()
        )
        raise ServerUnreachable(
            f"{asked}: {lost} of {len(plan.steps)} requests were not answered: {reasons}"
        )


async def _play(player: Player, stop: asyncio.Event) -> bool:
    """Play until the end, or until told to stop; whether it was all."""
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
    tell(f"{len(plan.steps)} requests in {seconds:.1f} s, answered: {answers or 'none'}")
    tell(f"answers in {output}")
    for reason, count in plan.left_out.items():
        tell(f"not sent: {count} {reason}")
    if outcome.latest > 10_000_000:
        tell(
            f"the replay itself was up to {outcome.latest / 1e6:.0f} ms late: this machine is too "
            "busy for the load, and latencies are longer than the server's"
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
