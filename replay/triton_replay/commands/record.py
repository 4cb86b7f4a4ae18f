"""`triton-replay record`: record the traffic between clients and a server, as a proxy."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import itertools
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final, NamedTuple

from triton_replay.addresses import Address, look_for_server, parse_address
from triton_replay.capture.files import CaptureWriter
from triton_replay.commands.common import (
    clock_from_now,
    opening,
    parse_size,
    print_message,
    run_loop,
)
from triton_replay.errors import ReplayError
from triton_replay.recording.grpc_tap import GrpcTap
from triton_replay.recording.http_tap import HttpTap, Sink
from triton_replay.recording.proxy import Proxy, Reading, Tap
from triton_replay.recording.recorder import Recorder, Selection
from triton_replay.recording.redaction import SECRET_NAMES, Redaction

SWITCH_SECONDS: Final = 0.0001
MAX_BODY: Final = 16 * 2**20
"""Default of `--max-body`, in bytes."""


class Front(NamedTuple):
    """A listening address, its server, and the tap that records the traffic."""

    listen: Address
    server: Address
    tap: type[HttpTap] | type[GrpcTap]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `record`."""
    add_proxy_options(parser)
    parser.add_argument(
        "--output",
        metavar="FILE",
        type=Path,
        required=True,
        help="the capture; must not exist; the suffix .gz or .zst compresses it",
    )


def add_proxy_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the proxy and of its recording."""
    add = parser.add_argument
    listen_help = "address for clients over HTTP; default: %(default)s"
    add("--listen", metavar="HOST:PORT", default="127.0.0.1:9000", help=listen_help)
    server_help = "the server's address for HTTP; default: %(default)s"
    add("--server", metavar="HOST:PORT", default="127.0.0.1:8000", help=server_help)
    add("--grpc-listen", metavar="HOST:PORT", help="address for clients over gRPC")
    add("--grpc-server", metavar="HOST:PORT", help="the server's address for gRPC")
    add("--seconds", type=float, help="duration; default: until Ctrl-C or SIGTERM")
    add(
        "--sample",
        metavar="SHARE",
        type=float,
        default=1.0,
        help="share of inferences to record, 0 to 1; sequences are recorded as a whole",
    )
    add("--seed", type=int, default=0, help="seed of the sample; default: 0")
    add(
        "--max-body",
        metavar="BYTES",
        type=int,
        default=MAX_BODY,
        help="largest body to record; only the size of larger ones is recorded; default: 16 MiB",
    )
    add("--max-capture", metavar="BYTES", type=int, help="size at which the recording ends")
    rotate_help = "size, such as 1GiB, from which another file continues the capture"
    add("--rotate", metavar="SIZE", help=rotate_help)
    add(
        "--redact-header",
        metavar="NAME",
        action="append",
        default=[],
        help="header to overwrite and query parameter to remove, in addition to those whose names "
        f"contain {', '.join(SECRET_NAMES)}; repeatable",
    )
    add(
        "--keep-header",
        metavar="NAME",
        action="append",
        default=[],
        help="header or query parameter to record although its name contains such a word; "
        "repeatable",
    )
    add(
        "--redact-tensor",
        metavar="NAME",
        action="append",
        default=[],
        help="input or output to overwrite; repeatable",
    )


def run(args: argparse.Namespace) -> int:
    """Run the command until it is stopped; return 0. Raise ReplayError."""
    run_loop(_record(args, fronts_of(args)))
    return 0


def fronts_of(args: argparse.Namespace) -> list[Front]:
    """Return the addresses in the options of `add_proxy_options`. Raise ReplayError."""
    if not 0 <= args.sample <= 1:
        raise ReplayError(f"--sample: found {args.sample}, expected a share from 0 to 1")
    # Otherwise another thread may hold the GIL for 5 ms while a request waits.
    sys.setswitchinterval(SWITCH_SECONDS)
    fronts = [
        Front(
            parse_address(args.listen, "--listen"),
            parse_address(args.server, "--server"),
            HttpTap,
        )
    ]
    if (args.grpc_listen is None) != (args.grpc_server is None):
        raise ReplayError("--grpc-listen, --grpc-server: found one, expected both or none")
    if args.grpc_listen is not None:
        listen = parse_address(args.grpc_listen, "--grpc-listen")
        server = parse_address(args.grpc_server, "--grpc-server")
        fronts.append(Front(listen, server, GrpcTap))
    return fronts


async def _record(args: argparse.Namespace, fronts: list[Front]) -> None:
    clock = clock_from_now()
    look_for_servers(fronts)
    writer = CaptureWriter.create(args.output, rotation_of(args))
    writer.write([opening(fronts[0].server, settings_of(args))])
    recorder = Recorder(
        writer,
        clock,
        Selection(args.sample, args.seed, args.max_body),
        redaction_of(args),
        args.max_capture,
        on_end=lambda reason: print_message(f"recording ended; the proxy continues: {reason}"),
    )
    recorder.start()
    listening = False
    try:
        async with listening_proxies(args, fronts, recorder, clock) as addresses:
            listening = True
            for front, bound in zip(fronts, addresses, strict=True):
                print_message(f"recording {front.server} at {bound} into {args.output}")
            await wait_for_end(args.seconds)
    finally:
        try:
            recorder.close()
        finally:
            if not listening:
                args.output.unlink()  # the capture is empty
            else:
                print_message(f"{recorder.recorded} requests in {args.output}")
                for reason, count in recorder.counts.items():
                    print_message(f"not recorded: {count} {reason}")


def look_for_servers(fronts: list[Front]) -> None:
    """Raise ServerUnreachable if a server does not accept connections."""
    for front, option in zip(fronts, ("--server", "--grpc-server"), strict=False):
        look_for_server(front.server, option)


@contextlib.asynccontextmanager
async def listening_proxies(
    args: argparse.Namespace, fronts: list[Front], sink: Sink, clock: Callable[[], int]
) -> AsyncIterator[list[Address]]:
    """Run a proxy for each front.

    Args:
        args: The options of `add_proxy_options`.
        fronts: The addresses.
        sink: Receives the records, on a thread of its own.
        clock: Returns nanoseconds since the start.

    Yields:
        The address of each proxy.

    Raises:
        ReplayError: An address cannot be used.
    """
    numbers, connections = itertools.count(), itertools.count()
    reading = Reading(clock, sink.count)

    def new_tap(kind: type[HttpTap] | type[GrpcTap]) -> Tap:
        return reading.beside(kind(next(connections), numbers, reading.clock, sink, args.max_body))

    reading.start()
    note = functools.partial(reading.note, sink.count)
    proxies = [Proxy(front.server, note, functools.partial(new_tap, front.tap)) for front in fronts]
    try:
        yield [
            await proxy.listen(front.listen) for proxy, front in zip(proxies, fronts, strict=True)
        ]
    finally:
        for proxy in proxies:
            await proxy.close()
        reading.close()


def rotation_of(args: argparse.Namespace) -> int:
    """Return the size at which captures are continued in another file; 0 for never."""
    return parse_size(args.rotate, "--rotate") if args.rotate else 0


def redaction_of(args: argparse.Namespace) -> Redaction:
    """Return the redaction that the options describe."""
    return Redaction(
        frozenset(name.lower() for name in args.redact_header),
        frozenset(args.redact_tensor),
        frozenset(name.lower() for name in args.keep_header),
        args.max_body,
    )


async def wait_for_end(seconds: float | None) -> None:
    """Wait for the end of this duration, or for SIGINT or SIGTERM."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(stop.wait(), seconds)


def settings_of(args: argparse.Namespace) -> dict[str, object]:
    """Return the settings that limit the content of a capture."""
    return {
        "sample": args.sample,
        "seed": args.seed,
        "max_body": args.max_body,
        "redact_headers": sorted({*SECRET_NAMES, *args.redact_header}),
        "keep_headers": sorted(args.keep_header),
        "grpc_server": args.grpc_server,
        "redact_tensors": sorted(args.redact_tensor),
    }
