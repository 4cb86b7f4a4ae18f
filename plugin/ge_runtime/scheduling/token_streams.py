"""Streams of tokens from a decoder, with iteration-level batching.

Each step executes all streams once: new streams with their prompt, all others with their last
token. New streams join at the next step, and finished or cancelled streams leave.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from ge_runtime.clock import Clock, SystemClock
from ge_runtime.errors import Abandoned, BlocksTaken, EngineFault, RequestFault
from ge_runtime.scheduling.request_batch import Answer, Caller
from ge_runtime.scheduling.sequences import SequenceId, SequenceStep
from ge_runtime.specs import Array, Tensors


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """The rules by which a stream chooses its tokens and ends."""

    max_tokens: int = 0
    """Largest number of generated tokens; 0: until the limit of the past."""
    stop_token: int = -1
    """The token that ends the stream; it is sent. Negative: none."""
    temperature: float = 0.0
    """The divisor of logits; 0: the token with the largest logit is chosen."""
    top_k: int = 0
    """The number of tokens with the largest logits to choose from; 0: all."""
    seed: int = 0

    def check(self) -> None:
        """Raise RequestFault for a value that is not allowed."""
        for name in ("max_tokens", "temperature", "top_k", "seed"):
            value = getattr(self, name)
            if not 0 <= value < float("inf"):  # NaN fails the comparison
                raise RequestFault(f"input '{name}': found {value}, expected at least 0")

    def sample(self, logits: Array, rng: np.random.Generator) -> int:
        """Return a token.

        Args:
            logits: Floats, [vocabulary].
            rng: Used only with a temperature.

        Raises:
            EngineFault: The largest logit is NaN or infinite.
        """
        most = int(logits.argmax())  # the index of NaN, if there is one
        if not np.isfinite(logits[most]):
            raise EngineFault(f"logits: found {logits[most]}, expected finite numbers")
        if self.temperature == 0 or self.top_k == 1:
            return most
        kept = np.arange(len(logits))
        if 0 < self.top_k < len(logits):
            kept = np.sort(np.argpartition(logits, -self.top_k)[-self.top_k :])
        differences = logits[kept].astype(np.float64) - float(logits[most])
        with np.errstate(over="ignore"):  # a tiny temperature chooses the largest logit
            sums = np.exp(differences / self.temperature).cumsum()
        return int(kept[np.searchsorted(sums, rng.random() * sums[-1], side="right")])


@dataclass(eq=False, slots=True)
class TokenStream:
    """One request for tokens."""

    sequence: SequenceId
    ids: Array
    """Token ids, [1, tokens]: first the prompt, then the generated tokens."""
    others: Tensors
    """The other inputs of the graph, [1, *dims], the same in each step."""
    options: SamplingOptions
    is_cancelled: Callable[[], bool]
    emit: Callable[[int, bool], None]
    """Receives each token, and whether it is the last. It must not raise."""
    fail: Callable[[Exception], None]
    """Receives the error that ends the stream. It must not raise."""
    deadline: float = math.inf
    """Seconds on the clock of the streams, after which the stream ends with an error."""
    past: int = 0
    """The number of ids that were executed."""
    count: int = 0
    """The number of generated tokens."""
    rng: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.options.seed)


class Decodes(Protocol):
    """The used part of `Runtime`."""

    def infer(self, requests: Sequence[Any], callers: Sequence[Caller]) -> list[Answer]:
        """Execute requests of sequences."""

    def end_sequence(self, sequence: SequenceId, *, departed: bool = False) -> None:
        """Free the states of a sequence."""


class TokenStreams:
    """The streams of one model. For one thread."""

    def __init__(
        self,
        runtime: Decodes,
        ids: str,
        logits: str,
        *,
        rows: int,
        most_tokens: int,
        past: int,
        clock: Clock | None = None,
    ) -> None:
        """Create an empty batch of streams.

        Args:
            runtime: Executes the decoder.
            ids: The input with token ids, [1, tokens].
            logits: The output, [1, tokens, vocabulary].
            rows: Largest number of streams that are decoded together; further streams wait.
            most_tokens: Largest number of tokens of a request. Longer prompts are executed in
                several steps.
            past: Largest number of tokens before a request.
            clock: The clock of the deadlines; by default the machine's.
        """
        self._clock = clock or SystemClock()
        self._runtime = runtime
        self._ids = ids
        self._logits = logits
        self._rows = rows
        self._most_tokens = most_tokens
        self._past = past
        self._active: list[TokenStream] = []
        self._waiting: deque[TokenStream] = deque()
        self._full = False
        """True from a step without enough free blocks until a stream ends."""

    @property
    def busy(self) -> bool:
        """True if there is a stream."""
        return bool(self._active or self._waiting)

    def add(self, stream: TokenStream) -> None:
        """Add a stream, which joins at the next step with a free row."""
        most = self._past + self._most_tokens
        if not 1 <= stream.ids.shape[1] <= most:
            found = f"input '{self._ids}': found {stream.ids.shape[1]} tokens"
            stream.fail(RequestFault(f"{found}, expected 1 to {most} (limit.past, limit.tokens)"))
            return
        self._waiting.append(stream)

    def step(self) -> None:
        """Execute all streams once."""
        self._update_active()
        if not self._active:
            return
        chunks = [self._next_ids(stream) for stream in self._active]
        answers = self._runtime.infer(
            [
                {**stream.others, self._ids: chunk}
                for stream, chunk in zip(self._active, chunks, strict=True)
            ],
            [Caller(sequence=SequenceStep(own.sequence, not own.past)) for own in self._active],
        )
        streams, self._active = self._active, []
        refused = []
        for stream, chunk, answer in zip(streams, chunks, answers, strict=True):
            if isinstance(answer, BlocksTaken) and len(streams) > 1:
                refused.append(stream)
                self._active.append(stream)
            elif isinstance(answer, Exception):
                self._end(stream, answer)
            else:
                try:
                    self._advance(stream, chunk.shape[1], answer[self._logits])
                except Exception as error:  # concerns this stream alone
                    self._end(stream, error)
        if refused and len(self._active) == len(streams):  # no stream has freed blocks
            self._full = True
            self._postpone(self._active.pop())
            # Refused streams that have not started would be refused again.
            while len(self._active) > 1 and self._active[-1] in refused:
                if self._active[-1].past:
                    break
                self._postpone(self._active.pop())

    def _update_active(self) -> None:
        """End streams that are late or cancelled, and let waiting streams join.

        A waiting stream is checked for cancellation only when it joins, as the check takes time.
        """
        now = self._clock.now()
        for stream in [own for own in self._waiting if own.deadline < now]:
            self._waiting.remove(stream)
            self._end_if_abandoned(stream, now)
        self._active = [own for own in self._active if not self._end_if_abandoned(own, now)]
        while self._waiting and len(self._active) < self._rows and not self._full:
            stream = self._waiting.popleft()
            if not self._end_if_abandoned(stream, now):
                self._active.append(stream)

    def _end_if_abandoned(self, stream: TokenStream, now: float) -> bool:
        caller = Caller(deadline=stream.deadline, is_cancelled=stream.is_cancelled)
        reason = caller.abandonment(now, ask=True)
        if reason is None:
            return False
        self._end(stream, reason)
        return True

    def _next_ids(self, stream: TokenStream) -> Array:
        """Return the token ids of the next request. If ids remain, the past is within its limit."""
        rest, count = stream.ids.shape[1] - stream.past, self._most_tokens
        if rest > count:
            count = min(count, self._past - stream.past)
        return stream.ids[:, stream.past : stream.past + count]

    def _postpone(self, stream: TokenStream) -> None:
        """Free the blocks of a stream. Its tokens are executed again after another stream ends."""
        self._runtime.end_sequence(stream.sequence)
        stream.past = 0
        self._waiting.appendleft(stream)

    def end_all(self, error: Exception) -> None:
        """End all streams with an error."""
        streams = (*self._active, *self._waiting)
        self._active, self._waiting = [], deque()
        for stream in streams:
            self._end(stream, error)

    def _advance(self, stream: TokenStream, executed: int, logits: Array) -> None:
        """Continue a stream after the execution of its next tokens."""
        stream.past += executed
        if stream.past < stream.ids.shape[1]:
            self._active.append(stream)
            return
        options = stream.options
        token = options.sample(logits[0, -1], stream.rng)
        stream.count += 1
        last = (
            stream.count == options.max_tokens
            or token == options.stop_token
            or stream.past > self._past
        )
        if last:  # before the answer, so that a client's next request finds the blocks free
            self._free(stream)
        stream.emit(token, last)
        if not last:
            new = np.full((1, 1), token, stream.ids.dtype)
            stream.ids = np.concatenate([stream.ids, new], axis=1)
            self._active.append(stream)

    def _end(self, stream: TokenStream, error: Exception) -> None:
        self._free(stream, departed=isinstance(error, Abandoned))
        stream.fail(error)

    def _free(self, stream: TokenStream, *, departed: bool = False) -> None:
        self._runtime.end_sequence(stream.sequence, departed=departed)
        self._full = False
