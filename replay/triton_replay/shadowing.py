"""Shadow traffic: send each request that a proxy forwards to A to B, too; compare the responses.

A's clients never wait for B: a separate thread sends the requests to B. Memory is bounded: requests
that exceed the limit are counted instead of sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Final

from triton_replay.addresses import Server
from triton_replay.capture.files import Exchange
from triton_replay.capture.records import Request, Response, StreamMessage, Traffic
from triton_replay.comparing.differences import Difference, model_of
from triton_replay.replaying.asking import Clients
from triton_replay.replaying.plan import changes_the_server, sequence_key, why_not_sent
from triton_replay.wire.bodies import Headers, NotUnderstood, read_body
from triton_replay.wire.grpc_messages import STREAMING, parameters_of, read_requests

DRAIN_SECONDS: Final = 5
"""Longest time for responses of B after the end of the traffic."""
_OVERHEAD: Final = 2_000
"""Memory of a record without its body, in bytes."""
_MOST: Final = 10_000
"""Largest number of models, kinds of differences and open sequences counted separately."""
OTHERS: Final = "others"

Differ = Callable[[Exchange, Exchange], Sequence[Difference]]


@dataclass(eq=False)
class _Pair:
    """A request with the responses of both servers."""

    request: Request
    size: int
    messages: list[StreamMessage] = field(default_factory=list)
    """Messages of the stream between the client and A."""
    a: Response | None = None
    b: Exchange | None = None
    after: asyncio.Future[None] | None = None
    """Completed when B has answered the previous request of the sequence."""
    done: asyncio.Future[None] | None = None
    """Completed when B has answered this request of a sequence."""
    is_queued: bool = False
    """True until B has answered."""
    is_lost: bool = False
    """True if a record of the request was dropped."""


@dataclass(eq=False)
class Shadow:
    """Sends requests to B and compares the responses. Implements `Sink` for the proxy's taps.

    `put` and `count` must be called by one thread at a time.

    Args:
        server: The server B.
        differ: Returns the differences between the responses of A and B.
        keeps: Returns whether a request is sent to B.
        put_a: Receives the request and response of A if the responses differ.
        put_b: Receives the request and response of B if the responses differ.
        on_difference: Called with the first difference of each kind, model and output.
        headers: Headers of all requests to B.
        timeout: Seconds until a request to B fails.
        clock: Returns nanoseconds since the start.
        in_flight: Number of concurrent requests to B.
        memory: Largest total size of requests and responses in progress, in bytes.
    """

    server: Server
    differ: Differ
    keeps: Callable[[Request], bool]
    put_a: Callable[[Traffic], None]
    put_b: Callable[[Traffic], None]
    _: KW_ONLY
    on_difference: Callable[[Difference], None]
    headers: Headers
    timeout: float
    clock: Callable[[], int]
    in_flight: int
    memory: int

    def __post_init__(self) -> None:
        self.compared: Counter[str] = Counter()
        """Compared requests by model."""
        self.differing: Counter[str] = Counter()
        """Requests with different responses by model."""
        self.kinds: Counter[tuple[str, str, str]] = Counter()
        """Differences by model, kind and output."""
        self.counts: Counter[str] = Counter()
        """Requests that were not compared, by reason."""
        self.unanswered: Counter[str] = Counter()
        """Requests to which B gave no complete response, by reason."""
        self._unread: Counter[str] = Counter()
        # Each counter is written by one thread only, so no lock is needed.
        self._bytes_put = 0
        self._bytes_freed = 0
        self._pairs: dict[int, _Pair] = {}
        self._open: OrderedDict[tuple[str, str], asyncio.Future[None]] = OrderedDict()
        """The last request of each sequence whose start was sent to B."""
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="shadow", daemon=True)

    # -- called by the proxy's threads

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()
        self._ready.wait()

    def put(self, record: Traffic) -> None:
        """Accept a record without waiting; drop and count it if it exceeds the memory limit."""
        size = len(record.body) + _OVERHEAD
        if self._bytes_put - self._bytes_freed + size > self.memory:
            is_request = isinstance(record, Request)
            self._loop.call_soon_threadsafe(self._lose, record.number, is_request)
            return
        self._bytes_put += size
        self._loop.call_soon_threadsafe(self._take, record, size)

    def count(self, reason: str) -> None:
        """Count traffic that cannot be read."""
        self._unread[reason] += 1

    def close(self) -> None:
        """Wait for B's responses, at most DRAIN_SECONDS, and end the thread."""
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()
        self.counts += self._unread

    # -- the thread

    def _run(self) -> None:
        asyncio.run(self._main())

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self._queue: asyncio.Queue[_Pair] = asyncio.Queue()
        workers = [asyncio.ensure_future(self._work()) for _ in range(self.in_flight)]
        self._ready.set()
        await self._stopping.wait()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._queue.join(), DRAIN_SECONDS)
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        if self._pairs:
            self.counts["requests without response at the end"] += len(self._pairs)

    def _take(self, record: Traffic, size: int) -> None:
        if isinstance(record, Request):
            self._take_request(record, size)
            return
        pair = self._pairs.get(record.number)
        if pair is None:
            self._bytes_freed += size
            return
        pair.size += size
        if isinstance(record, StreamMessage):
            pair.messages.append(record)
            return
        pair.a = record
        if _is_stream(pair.request):  # sent when complete, with all messages of the client
            self._send(pair)
        self._finish(pair)

    def _take_request(self, request: Request, size: int) -> None:
        sequence = None if _is_stream(request) else sequence_key(request)
        reason = self._why_not(request, sequence)
        if reason:
            self.counts[reason] += 1
            self._bytes_freed += size
            return
        pair = self._pairs[request.number] = _Pair(request, size)
        if sequence is not None:
            pair.after = self._open.pop(sequence, None)
            pair.done = self._loop.create_future()
            if not _flag(request, "sequence_end"):
                self._open[sequence] = pair.done
            if len(self._open) > _MOST:
                self._open.popitem(last=False)
        if not _is_stream(request):
            self._send(pair)

    def _send(self, pair: _Pair) -> None:
        pair.is_queued = True
        self._queue.put_nowait(pair)

    def _why_not(self, request: Request, sequence: tuple[str, str] | None) -> str:
        if not self.keeps(request):
            return "requests that were not selected"
        if changes_the_server(request):
            return "requests that change the server"
        if sequence and sequence not in self._open and not _flag(request, "sequence_start"):
            return "requests of sequences whose start was not sent to B"
        return why_not_sent(Exchange(request, None))

    def _lose(self, number: int, is_request: bool) -> None:
        """Forget a request of which a record was dropped."""
        pair = self._pairs.get(number)
        if is_request:
            # The request may belong to any sequence, which B then cannot continue.
            self._open.clear()
        elif pair is None:
            return
        self.counts["requests that exceeded --memory, because B is too slow"] += 1
        if pair is not None:
            pair.is_lost = True
            if not pair.is_queued:
                self._forget(pair)

    async def _work(self) -> None:
        with contextlib.ExitStack() as stack:
            shared = (self.headers, self.timeout, self.clock, stack, self.unanswered)
            clients = Clients(self.server, *shared)
            while True:
                pair = await self._queue.get()
                try:
                    # A lost request of a sequence is still sent: a later one may wait for it.
                    if pair.done is not None or not pair.is_lost:
                        pair.b = await self._ask(pair, clients)
                except Exception as error:  # a defect: the thread must go on
                    self.counts[f"requests that could not be sent: {error!r}"] += 1
                    pair.is_lost = True
                finally:
                    pair.is_queued = False
                    if pair.done is not None:
                        pair.done.set_result(None)
                    self._queue.task_done()
                if pair.is_lost:
                    self._forget(pair)
                self._finish(pair)

    async def _ask(self, pair: _Pair, clients: Clients) -> Exchange:
        if pair.after is not None:
            await pair.after
        recorded = Exchange(pair.request, None, tuple(pair.messages))
        exchange, latency = await clients.ask(recorded)
        answers = [exchange.response, *exchange.messages]
        size = sum(len(answer.body) for answer in answers if answer is not None)
        pair.size += size
        self._bytes_freed -= size  # kept until A has answered
        end = exchange.response.end if exchange.response else self.clock()
        sent = max(end - latency, 0)
        return replace(exchange, request=replace(exchange.request, at=sent, end=sent))

    def _finish(self, pair: _Pair) -> None:
        """Compare the responses once both are complete."""
        if pair.a is None or pair.b is None or not self._forget(pair):
            return
        if pair.a.ended == "client":
            self.counts["requests whose client disconnected from A"] += 1
            return
        a = Exchange(pair.request, pair.a, tuple(pair.messages))
        try:
            differences = self.differ(a, pair.b)
        except Exception as error:  # a defect: the thread must go on
            self.counts[f"requests that could not be compared: {error!r}"] += 1
            return
        model = model_of(pair.request)
        model = model if model in self.compared or len(self.compared) < _MOST else OTHERS
        self.compared[model] += 1
        if not differences:
            return
        self.differing[model] += 1
        for one in differences:
            key = (one.model, one.kind, one.output)
            if key not in self.kinds:
                if len(self.kinds) >= _MOST:
                    continue
                self.on_difference(one)
            self.kinds[key] += 1
        for put, exchange in ((self.put_a, a), (self.put_b, pair.b)):
            for record in (exchange.request, *exchange.messages, exchange.response):
                if record is not None:
                    put(record)

    def _forget(self, pair: _Pair) -> bool:
        """Release a pair's memory; return whether it was not released before."""
        if self._pairs.pop(pair.request.number, None) is None:
            return False
        self._bytes_freed += pair.size
        return True


def _is_stream(request: Request) -> bool:
    return request.protocol == "grpc" and request.target.endswith(STREAMING)


def _flag(request: Request, name: str) -> bool:
    """Return whether a request of a sequence has a flag, such as `sequence_start`."""
    try:
        if request.protocol == "grpc":
            return parameters_of(read_requests(request.body)[0]).get(name) is True
        parameters = read_body(request.headers, request.body).document.get("parameters")
    except NotUnderstood:
        return False
    return isinstance(parameters, dict) and parameters.get(name) is True
