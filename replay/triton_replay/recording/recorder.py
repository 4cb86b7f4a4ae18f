"""Writing of records to a capture, on a separate thread.

`put` only appends to a queue. Every quarter of a second the writer thread selects, redacts and
writes the queued records and synchronizes the file, so that a crash of the machine loses at most
the last second. If the disk is too slow, records are dropped and counted; traffic never waits.
"""

from __future__ import annotations

import hashlib
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from triton_replay.capture.files import CaptureWriter
from triton_replay.capture.records import Closing, Record, Request, Response, Traffic, encode_record
from triton_replay.errors import CaptureIncomplete
from triton_replay.recording.redaction import Redaction
from triton_replay.wire.bodies import INFERENCE, MAX_UNPACKED, sequence_of
from triton_replay.wire.grpc_messages import is_inference, sequence_of_call

INTERVAL: Final = 0.25
"""Seconds between two writes."""
MAX_WAITING: Final = 256 * 2**20
"""Largest total size of queued bodies, in bytes."""


@dataclass(eq=False)
class Recorder:
    """Writes one capture. `put` and `count` must be called by one thread at a time.

    Args:
        writer: The capture; the recorder closes it.
        clock: Returns nanoseconds since the start of the recording.
        selection: Selects the requests to keep; None for all.
        redaction: Selects what is overwritten; None for the default headers.
        max_capture: Size in bytes at which the recording ends; None for no limit.
        max_waiting: Largest total size of queued bodies, in bytes.
        on_end: Called on the writer thread with the reason if the recording ends early.
    """

    writer: CaptureWriter
    clock: Callable[[], int]
    selection: Selection | None = None
    redaction: Redaction | None = None
    max_capture: int | None = None
    max_waiting: int = MAX_WAITING
    on_end: Callable[[str], None] = lambda reason: None

    def __post_init__(self) -> None:
        self._selection = self.selection or Selection()
        self._redaction = self.redaction or Redaction()
        self._waiting: deque[Traffic] = deque()
        # Each counter is written by one thread only, so no lock is needed.
        self._bytes_put = 0
        self._bytes_taken = 0
        self._skipped: set[int] = set()
        """Numbers of skipped requests whose responses are still to come."""
        self.counts: Counter[str] = Counter()
        """Records that are not in the capture, by reason."""
        self.ended = ""
        """Why the recording ended early, or ""."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)

    @property
    def recorded(self) -> int:
        """Number of requests in the capture."""
        return self.writer.requests

    def start(self) -> None:
        """Start the writer thread."""
        self._thread.start()

    def put(self, record: Traffic) -> None:
        """Queue a record without waiting; drop and count it if the queue is full."""
        size = len(record.body)
        if self._bytes_put - self._bytes_taken + size > self.max_waiting:
            self.count("records for which the disk was too slow")
            return
        self._bytes_put += size
        self._waiting.append(record)

    def count(self, reason: str) -> None:
        """Count traffic that is not recorded."""
        self.counts[reason] += 1

    def close(self, cut_short: str = "", lateness: Mapping[str, int] | None = None) -> None:
        """Write the queued records and the closing record.

        Args:
            cut_short: Reason of the caller for an early end, or "".
            lateness: The value of `Closing.lateness`; None for a recording.

        Raises:
            CaptureIncomplete: The recording ended early, or the disk is full.
        """
        self._stop.set()
        self._thread.join()
        self.write_waiting()
        reason = self.ended or cut_short
        closing = Closing(self.clock(), reason or "stopped", dict(self.counts), lateness or {})
        try:
            self.writer.write([closing])
            self.writer.sync()
        except CaptureIncomplete:
            if not reason:
                raise
        finally:
            self.writer.close()
        if reason:
            raise CaptureIncomplete(reason)

    def write_waiting(self) -> None:
        """Write the queued records; store an error of the disk in `ended`."""
        records = [self._waiting.popleft() for _ in range(len(self._waiting))]
        size = sum(len(record.body) for record in records)
        try:
            self._write(records)
        finally:
            self._bytes_taken += size

    def _write(self, records: list[Traffic]) -> None:
        if self.ended:
            self.counts["records after the recording's end"] += len(records)
            return
        if not records:
            return
        try:
            for batch in self._within_limit(self._kept(records)):
                self.writer.write(batch)
                self.writer.sync()
        except CaptureIncomplete as error:
            self.ended = str(error)
        except Exception as error:
            # A defect in the recorder. The thread must report it before it ends.
            self.ended = f"the recorder failed: {error!r}"
        if self.ended:
            self.on_end(self.ended)

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL):
            self.write_waiting()

    def _kept(self, records: list[Traffic]) -> Iterator[Traffic]:
        for record in records:
            if isinstance(record, Request):
                if not self._selection.takes(record):
                    self._skipped.add(record.number)
                    self.counts["requests that were not sampled"] += 1
                    continue
            elif record.number in self._skipped:
                if isinstance(record, Response):
                    self._skipped.remove(record.number)
                continue
            if not record.whole:
                self.counts["bodies longer than --max-body"] += 1
            redacted = self._redaction.apply(record)
            if record.body and not redacted.body:
                self.counts["bodies that could not be redacted"] += 1
            yield redacted

    def _within_limit(self, records: Iterator[Traffic]) -> Iterator[list[Record]]:
        """Yield the records in batches, so that slow redaction does not delay earlier records."""
        batch: list[Record] = []
        size, since = self.writer.size, self.clock()
        for record in records:
            if self.max_capture is not None:
                size += 16 + sum(map(len, encode_record(record)))
                if size > self.max_capture:
                    self.ended = f"--max-capture of {self.max_capture} bytes is reached"
                    break
            batch.append(record)
            if self.clock() - since > INTERVAL * 1e9:
                yield batch
                batch, since = [], self.clock()
        yield batch


# -- sampling of requests: whole sequences, reproducible by a seed


@dataclass(frozen=True)
class Selection:
    """A random selection.

    Args:
        share: Share of inferences that are kept, 0 to 1.
        seed: Seed of the selection.
        max_unpacked: Largest decompressed size of a body in which a sequence is looked for.
    """

    share: float = 1.0
    seed: int = 0
    max_unpacked: int = MAX_UNPACKED

    def takes(self, request: Request) -> bool:
        """Return whether a request is kept.

        The requests of a sequence are kept or dropped together. Requests that change the server,
        such as the registration of shared memory, are always kept: later requests depend on them.
        """
        if self.share >= 1:
            return True
        if request.protocol == "grpc":
            if not is_inference(request.target):
                return True
            sequence = sequence_of_call(request.body, self.max_unpacked)
            if sequence and not request.target.endswith("/ModelStreamInfer"):
                return self._draw(sequence)
        elif request.method != "GET":
            found = INFERENCE.match(request.target.partition("?")[0])
            if not found:
                return True
            sequence = sequence_of(request.headers, request.body, self.max_unpacked)
            if sequence:
                return self._draw(f"{found['model']} {sequence}")
        return self._draw(str(request.number))

    def _draw(self, key: str) -> bool:
        digest = hashlib.blake2b(f"{self.seed} {key}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") < self.share * 2**64
