"""`triton-replay shadow`: forward traffic to a server, send it to another one, and compare."""

from __future__ import annotations

import argparse
from pathlib import Path

from triton_replay.addresses import look_for_server
from triton_replay.capture.files import CaptureWriter, Exchange
from triton_replay.capture.records import Request
from triton_replay.commands.ab import parse_server
from triton_replay.commands.common import (
    clock_from_now,
    make_folder,
    opening,
    parse_header,
    parse_size,
    print_message,
    print_result,
    run_loop,
)
from triton_replay.commands.compare import parse_ignored
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
from triton_replay.comparing.differences import Difference, compare_answers, model_of
from triton_replay.comparing.tolerances import parse_tolerances
from triton_replay.errors import CaptureIncomplete, ReplayError
from triton_replay.recording.recorder import Recorder, Selection
from triton_replay.replaying.asking import Server
from triton_replay.shadowing import Differ, Shadow


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `shadow`."""
    add_proxy_options(parser)
    add = parser.add_argument
    add("--b", metavar="HOST:PORT", required=True, help="address of B for HTTP")
    add("--b-grpc", metavar="HOST:PORT", help="address of B for gRPC; default: the next port")
    output_help = "folder for a.trc and b.trc, the requests whose responses differ"
    add("--output", metavar="DIR", type=Path, required=True, help=output_help)
    add("--in-flight", metavar="N", type=int, default=16, help="concurrent requests; default: 16")
    memory_help = "most memory for requests in progress; others are not sent to B; default: 256MiB"
    add("--memory", metavar="SIZE", default="256MiB", help=memory_help)
    add("--header", metavar="NAME:VALUE", action="append", default=[], help="as for replay")
    add("--timeout", metavar="SECONDS", type=float, default=60.0, help="limit; default: 60")
    add("--tolerance", metavar="KEY=NUMBER", action="append", default=[], help="as for compare")
    add("--ignore", metavar="FIELD,...", action="append", default=[], help="as for compare")
    add_filter_options(parser)


def run(given: argparse.Namespace) -> int:
    """Run the command until it is stopped.

    Returns:
        0 if no response differs, otherwise 1.

    Raises:
        ReplayError: An option or a file is invalid.
        ServerUnreachable: No server listens at an address.
        CaptureIncomplete: Some differences are not stored.
    """
    if given.in_flight < 1:
        raise ReplayError(f"--in-flight: found {given.in_flight}, expected 1 or more")
    fronts, server = fronts_of(given), parse_server(given, "b")
    look_for_servers(fronts)
    look_for_server(server.http, "--b")
    if len(fronts) > 1:
        look_for_server(server.grpc, "--b-grpc")
    tolerances, ignored = parse_tolerances(given.tolerance), parse_ignored(given.ignore)

    def differ(a: Exchange, b: Exchange) -> list[Difference]:
        return compare_answers(model_of(a.request), a, b, tolerances, ignored)

    return _Command(given, fronts, server, differ).run()


class _Command:
    """One run of the command."""

    def __init__(
        self, given: argparse.Namespace, fronts: list[Front], server: Server, differ: Differ
    ) -> None:
        self._given = given
        self._listening = False
        self._fronts = fronts
        self._clock = clock_from_now()
        headers = tuple(parse_header(text, "--header") for text in given.header)
        memory = parse_size(given.memory, "--memory")
        self._selection = Selection(given.sample, given.seed, given.max_body)
        self._filter = filter_of(given)
        make_folder(given.output)
        self._paths = [given.output / "a.trc", given.output / "b.trc"]
        for path in self._paths:
            if path.exists():
                raise ReplayError(f"--output: {path} exists. Use another folder")
        recorders = []
        for path, address in zip(self._paths, (fronts[0].server, server.http), strict=True):
            writer = CaptureWriter.create(path, rotation_of(given))
            settings = {**settings_of(given), "shadow_of": str(fronts[0].server)}
            writer.write([opening(address, settings)])
            recorders.append(
                Recorder(
                    writer,
                    self._clock,
                    redaction=redaction_of(given),
                    max_capture=given.max_capture,
                    on_end=lambda reason: print_message(f"no more differences stored: {reason}"),
                )
            )
        self._recorders = recorders
        self._shadow = Shadow(
            server,
            differ,
            self._keeps,
            *(recorder.put for recorder in recorders),
            on_difference=lambda one: print_message(
                f"differs: {_title(one.model, one.kind, one.output)}; {one.detail}"
            ),
            headers=headers,
            timeout=given.timeout,
            clock=self._clock,
            in_flight=given.in_flight,
            memory=memory,
        )

    def _keeps(self, request: Request) -> bool:
        return self._filter.keeps(Exchange(request, None)) and self._selection.takes(request)

    def run(self) -> int:
        for recorder in self._recorders:
            recorder.start()
        self._shadow.start()
        failures: list[CaptureIncomplete] = []
        try:
            run_loop(self._serve())
        finally:
            self._shadow.close()
            for recorder, path in zip(self._recorders, self._paths, strict=True):
                try:
                    recorder.close()
                except CaptureIncomplete as error:
                    failures.append(error)
                if not self._listening:
                    path.unlink()  # the capture is empty
        code = self._report()
        if failures:
            raise failures[0]
        return code

    async def _serve(self) -> None:
        proxies = listening_proxies(self._given, self._fronts, self._shadow, self._clock)
        async with proxies as addresses:
            for front, bound in zip(self._fronts, addresses, strict=True):
                print_message(
                    f"shadowing {front.server} at {bound}, differences in {self._given.output}"
                )
            self._listening = True
            await wait_for_end(self._given.seconds)

    def _report(self) -> int:
        shadow = self._shadow
        lines = [f"{'compared':>8}  {'differ':>8}  model"]
        for model, count in shadow.compared.most_common():
            lines.append(f"{count:>8}  {shadow.differing[model]:>8}  {model}")
        for (model, kind, output), count in shadow.kinds.most_common():
            lines.append(f"{count} times {_title(model, kind, output)}")
        for reason, count in shadow.counts.items():
            lines.append(f"not compared: {count} {reason}")
        for reason, count in (self._recorders[0].counts + self._recorders[1].counts).items():
            lines.append(f"not stored: {count} {reason}")
        print_result("\n".join(lines))
        return 1 if shadow.differing else 0


def _title(model: str, kind: str, output: str) -> str:
    return f"{kind}: {model}" + (f", {output}" if output else "")
