"""Measure the reference server's HTTP/2 core against one on the library `h2`.

    pip install 'h2>=4.1'
    python -m benchmarks.http2_cores              unary at 1, 8 and 32 in flight, five turns of each
    python -m benchmarks.http2_cores --rounds 2   quicker

The same server, the same model, the same load from NVIDIA's perf_analyzer; the cores take turns.
All but the core is the same: `python -m benchmarks.http2_cores serve FLAGS` is the reference server
with `Http2Connection` replaced by `H2Core`, which has the same interface.

`H2Core` is written for speed, not for abuse: h2 checks frames and windows, and nothing here counts
what a client wastes.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from hpack import Decoder

from benchmarks.instruments import print_machine_facts
from benchmarks.perf import WORKLOADS, PerfAnalyzerFailed, copy_models, measure_point, warm_up
from reference_server.command import cli
from reference_server.frontends.grpc import session
from reference_server.frontends.grpc.http2.connection import Http2Connection
from reference_server.frontends.grpc.http2.frames import ErrorCode, Limits
from reference_server.frontends.grpc.http2.receiving import (
    ConnectionFailed,
    DataCame,
    Event,
    PingCame,
    PongCame,
    RequestBegan,
    RequestEnded,
    StreamGone,
)
from reference_server.frontends.grpc.http2.streams import Part
from tests.support.servers import start_reference_server

CORES = {"ours": ("-m", "reference_server"), "h2": ("-m", "benchmarks.http2_cores", "serve")}
WORKLOAD = WORKLOADS["identity/grpc"]


@lru_cache(256)
def fields_of(block: bytes) -> list[tuple[bytes, bytes]]:
    """The fields of a block that the server has written; h2 encodes them itself."""
    return [(bytes(name), bytes(value)) for name, value in Decoder().decode(block, raw=True)]


class H2Core:
    """What `Http2Connection` is, on `h2.connection.H2Connection`."""

    def __init__(self, limits: Limits | None = None) -> None:
        from h2.config import H2Configuration
        from h2.connection import H2Connection
        from h2.settings import SettingCodes

        limits = limits or Limits()
        # What gRPC's peers send is taken as it is: validation and normalisation cost time.
        config = H2Configuration(
            client_side=False,
            header_encoding=None,
            validate_inbound_headers=False,
            normalize_inbound_headers=False,
            validate_outbound_headers=False,
            normalize_outbound_headers=False,
        )
        self._h2 = H2Connection(config)
        self._h2.local_settings.update(
            {
                SettingCodes.MAX_CONCURRENT_STREAMS: limits.max_streams,
                SettingCodes.INITIAL_WINDOW_SIZE: limits.stream_window,
                SettingCodes.MAX_FRAME_SIZE: limits.max_frame,
                SettingCodes.MAX_HEADER_LIST_SIZE: limits.max_header_list,
            }
        )
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(limits.connection_window - 65_535)
        self._queues: dict[int, deque[Part]] = {}
        self._trailers: dict[int, bytes] = {}
        self._half_closed: set[int] = set()
        self._streams: set[int] = set()
        self.is_greeted = False

    @property
    def open_streams(self) -> int:
        return len(self._streams)

    def receive(self, data: memoryview, now_s: float) -> list[Event]:
        from h2 import events as h2
        from h2.exceptions import ProtocolError

        try:
            happened = self._h2.receive_data(bytes(data))
        except ProtocolError as error:
            gone: list[Event] = [StreamGone(stream) for stream in self._streams]
            self._streams.clear()
            return [*gone, ConnectionFailed(str(error))]
        told: list[Event] = []
        for event in happened:
            match event:
                case h2.RequestReceived():
                    self._streams.add(event.stream_id)
                    ended = event.stream_ended is not None
                    told.append(RequestBegan(event.stream_id, tuple(event.headers), ended))
                    if ended:
                        self._half_closed.add(event.stream_id)
                case h2.DataReceived():
                    if event.flow_controlled_length:
                        self._h2.acknowledge_received_data(
                            event.flow_controlled_length, event.stream_id
                        )
                    ended = event.stream_ended is not None
                    told.append(DataCame(event.stream_id, memoryview(event.data), ended))
                    if ended:
                        self._half_closed.add(event.stream_id)
                case h2.TrailersReceived():
                    told.append(RequestEnded(event.stream_id))
                case h2.StreamReset():
                    self._forget(event.stream_id)
                    told.append(StreamGone(event.stream_id))
                case h2.PingReceived():
                    told.append(PingCame())
                case h2.PingAckReceived():
                    told.append(PongCame(event.ping_data))
                case h2.WindowUpdated():
                    for stream in tuple(self._queues):
                        self._pump(stream)
                case h2.RemoteSettingsChanged():
                    self.is_greeted = True
        return told

    def take_output(self) -> list[Part]:
        data = self._h2.data_to_send()
        return [data] if data else []

    def headers(self, stream_id: int, block: bytes) -> None:
        if stream_id in self._streams:
            self._h2.send_headers(stream_id, fields_of(block))

    def data(self, stream_id: int, *parts: Part) -> None:
        if stream_id in self._streams:
            self._queues.setdefault(stream_id, deque()).extend(parts)
            self._pump(stream_id)

    def finish(self, stream_id: int, block: bytes) -> None:
        if stream_id in self._streams:
            self._trailers[stream_id] = block
            self._pump(stream_id)

    def reply(self, stream_id: int, block: bytes, body: Sequence[Part], trailers: bytes) -> None:
        self.headers(stream_id, block)
        self.data(stream_id, b"".join(body))
        self.finish(stream_id, trailers)

    def reset(self, stream_id: int, code: ErrorCode) -> None:
        if stream_id in self._streams:
            self._h2.reset_stream(stream_id, int(code))
            self._forget(stream_id)

    def ping(self, payload: bytes) -> None:
        self._h2.ping(payload)

    def announce_end(self) -> None:
        """h2 knows no first, warning GOAWAY."""

    def end(self, code: ErrorCode = ErrorCode.NO_ERROR, reason: bytes = b"") -> None:
        self._h2.close_connection(int(code), reason)

    def pause(self) -> None:
        """Small answers: the transport is never full."""

    def resume(self) -> None:
        """See `pause`: nothing was held back."""

    def lost(self) -> None:
        self._streams.clear()
        self._queues.clear()

    def _pump(self, stream_id: int) -> None:
        queue = self._queues.get(stream_id)
        while queue:
            part = queue.popleft()
            room = min(
                self._h2.local_flow_control_window(stream_id), self._h2.max_outbound_frame_size
            )
            if room <= 0:
                queue.appendleft(part)
                return
            if len(part) > room:
                view = memoryview(part)
                queue.appendleft(view[room:])
                part = view[:room]
            self._h2.send_data(stream_id, bytes(part))
        trailers = self._trailers.pop(stream_id, None)
        if trailers is not None:
            self._h2.send_headers(stream_id, fields_of(trailers), end_stream=True)
            if stream_id not in self._half_closed:
                self._h2.reset_stream(stream_id, 0)
            self._forget(stream_id)

    def _forget(self, stream_id: int) -> None:
        self._streams.discard(stream_id)
        self._half_closed.discard(stream_id)
        self._queues.pop(stream_id, None)
        self._trailers.pop(stream_id, None)


def serve(arguments: Sequence[str]) -> None:
    """Be the reference server, with h2 under gRPC."""
    assert session.Http2Connection is Http2Connection
    vars(session)["Http2Connection"] = H2Core
    sys.exit(cli.main(arguments))


def main() -> None:
    """Measure, and print a row for each number of requests in flight."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.http2_cores",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=5, help="turns of each core (default: 5)")
    parser.add_argument("--window", type=int, default=1500, metavar="MS", help="default: 1500")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 32], metavar="N")
    options = parser.parse_args()
    print_machine_facts()
    rates: dict[tuple[str, int], list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="http2-") as directory:
        repository = Path(directory) / "repository"
        copy_models(repository, [WORKLOAD.name])
        for _ in range(options.rounds):
            for core, concurrency, rate in turn(repository, options):
                rates.setdefault((core, concurrency), []).append(rate)
    print(f"\n=== unary, identity: the median of {options.rounds} turns, requests per second")
    print(f"{'in flight':>9} {'ours':>9} {'h2':>9}  ratio of each turn, and its median")
    for concurrency in options.concurrency:
        ours, h2 = (rates[core, concurrency] for core in CORES)
        ratios = [a / b for a, b in zip(ours, h2, strict=True)]
        each = " ".join(f"{ratio:.2f}" for ratio in ratios)
        medians = f"{statistics.median(ours):9.0f} {statistics.median(h2):9.0f}"
        print(f"{concurrency:9} {medians}  {each}  {statistics.median(ratios):.2f}x")


def turn(repository: Path, options: argparse.Namespace) -> Iterator[tuple[str, int, float]]:
    """One turn of each core: core, requests in flight, requests per second."""
    for core, program in CORES.items():
        with start_reference_server(repository, program=program, allow_metrics=False) as server:
            warm_up(WORKLOAD, server, max(options.concurrency))
            for concurrency in options.concurrency:
                try:
                    row = measure_point(WORKLOAD, server, concurrency, options.window)
                except PerfAnalyzerFailed as failure:
                    raise SystemExit(str(failure)) from None
                yield core, concurrency, float(row["Inferences/Second"])


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(sys.argv[2:])
    else:
        main()
