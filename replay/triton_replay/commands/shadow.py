"""`triton-replay shadow`: forward traffic to a server, send it to another one, and compare."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from triton_replay.addresses import Address, look_for_server
from triton_replay.capture.files import CaptureWriter, Exchange
from triton_replay.commands.common import (
    RULE_OPTIONS,
    add_headers,
    add_rules,
    clock_from_now,
    headers_of,
    make_folder,
    opening,
    parse_size,
    print_message,
    print_result,
    run_loop,
)
from triton_replay.commands.filtering import add_filter_options, filter_of
from triton_replay.commands.record import (
    Front,
    add_proxy_options,
    fronts_of,
    listening_proxies,
    look_for_servers,
    redaction_of,
    rotation_of,
    settings_of,
    wait_for_end,
)
from triton_replay.commands.tls import add_tls, server_of
from triton_replay.comparing.differences import compare_answers, model_of
from triton_replay.comparing.tolerances import parse_tolerances
from triton_replay.errors import CaptureIncomplete, ReplayError
from triton_replay.recording.recorder import Recorder, Selection
from triton_replay.reporting.table import title_of
from triton_replay.shadowing import Shadow


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `shadow`."""
    add_proxy_options(parser)
    add = parser.add_argument
    add("--b", metavar="HOST:PORT", required=True, help="address of B for HTTP")
    add("--b-grpc", metavar="HOST:PORT", help="address of B for gRPC; default: the next port")
    output_help = "folder for a.trc and b.trc, the requests whose responses differ"
    add("--output", metavar="DIR", type=Path, required=True, help=output_help)
    add("--in-flight", metavar="N", type=int, default=16, help="concurrent requests; default: 16")
    memory_help = "memory for requests in progress; beyond it, none is sent to B; default: 256MiB"
    add("--memory", metavar="SIZE", default="256MiB", help=memory_help)
    add_headers(add, timeout=60)
    add_rules(add, RULE_OPTIONS[:2])
    add_filter_options(parser)
    add_tls(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command until it is stopped.

    Returns:
        0 if no response differs, otherwise 1.

    Raises:
        ReplayError: An option or a file is invalid.
        ServerUnreachable: No server listens at an address.
        CaptureIncomplete: Some differences are not stored.
    """
    if args.in_flight < 1:
        raise ReplayError(f"--in-flight: found {args.in_flight}, expected 1 or more")
    headers = headers_of(args)
    fronts, server = fronts_of(args), server_of(args, "--b", "--b-grpc")
    look_for_servers(fronts)
    look_for_server(server.http, "--b")
    if len(fronts) > 1:
        look_for_server(server.grpc, "--b-grpc")
    rules = parse_tolerances(args.tolerance, args.ignore)
    selected = filter_of(args, before_response=True)
    selection = Selection(args.sample, args.seed, args.max_body)
    clock = clock_from_now()
    recorders = _recorders(args, {"a.trc": fronts[0].server, "b.trc": server.http}, clock)
    shadow = Shadow(
        server,
        lambda a, b: compare_answers(model_of(a.request), a, b, rules),
        lambda request: selected.keeps(Exchange(request, None)) and selection.takes(request),
        *(recorder.put for recorder in recorders.values()),
        on_difference=lambda one: print_message(
            f"differs: {title_of(one.kind, one.model, one.output)}; {one.detail}"
        ),
        headers=headers,
        timeout=args.timeout,
        clock=clock,
        in_flight=args.in_flight,
        memory=parse_size(args.memory, "--memory"),
    )
    for recorder in recorders.values():
        recorder.start()
    shadow.start()
    failures: list[CaptureIncomplete] = []
    try:
        run_loop(_serve(args, fronts, shadow, clock))
    finally:
        shadow.close()
        for path, recorder in recorders.items():
            try:
                recorder.close()
            except CaptureIncomplete as error:
                failures.append(error)
            if not shadow.compared and not recorder.recorded:
                path.unlink()  # the capture is empty
    print_result("\n".join(_report(shadow, [recorder.counts for recorder in recorders.values()])))
    if failures:
        raise failures[0]
    return 1 if shadow.differing else 0


def _recorders(
    args: argparse.Namespace, servers: Mapping[str, Address], clock: Callable[[], int]
) -> dict[Path, Recorder]:
    """Create the captures of differences."""
    make_folder(args.output)
    recorders = {}
    for name in servers:
        if (args.output / name).exists():
            raise ReplayError(f"--output: {args.output / name} exists. Use another folder")
    for name, address in servers.items():
        path = args.output / name
        writer = CaptureWriter.create(path, rotation_of(args))
        writer.write([opening(address, {**settings_of(args), "shadow_of": args.server})])
        recorders[path] = Recorder(
            writer,
            clock,
            redaction=redaction_of(args),
            max_capture=args.max_capture,
            on_end=lambda reason: print_message(f"no more differences are stored: {reason}"),
        )
    return recorders


async def _serve(
    args: argparse.Namespace, fronts: list[Front], shadow: Shadow, clock: Callable[[], int]
) -> None:
    async with listening_proxies(args, fronts, shadow, clock) as addresses:
        for front, bound in zip(fronts, addresses, strict=True):
            print_message(f"shadowing {front.server} at {bound}, differences in {args.output}")
        await wait_for_end(args.seconds)


def _report(shadow: Shadow, not_stored: Sequence[Counter[str]]) -> Iterator[str]:
    yield f"{'compared':>8}  {'differ':>8}  model"
    for model, count in shadow.compared.most_common():
        yield f"{count:>8}  {shadow.differing[model]:>8}  {model}"
    for (model, kind, output), count in shadow.kinds.most_common():
        yield f"{count} times {title_of(kind, model, output)}"
    for reason, count in shadow.unanswered.items():
        yield f"no response of B: {count} times {reason}"
    for reason, count in shadow.counts.items():
        yield f"not compared: {count} {reason}"
    for counts in not_stored:
        for reason, count in counts.items():
            yield f"not stored: {count} {reason}"
