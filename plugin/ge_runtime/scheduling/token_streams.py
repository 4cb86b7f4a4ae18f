"""Streams of tokens from a decoder, with iteration-level batching.

Each step executes all streams once: a stream that starts with its prompt, others with their last
token. New streams join at the next step, and finished or cancelled ones leave.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from ge_runtime.clock import Clock, SystemClock
from ge_runtime.errors import BlocksTaken, RequestFault
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
        """
        if self.temperature == 0 or self.top_k == 1:
            return int(logits.argmax())
        kept = np.arange(len(logits))
        if 0 < self.top_k < len(logits):
            kept = np.sort(np.argpartition(logits, -self.top_k)[-self.top_k :])
        scaled = logits[kept].astype(np.float64) / self.temperature
        sums = np.exp(scaled - scaled.max()).cumsum()
        return int(kept[np.searchsorted(sums, rng.random() * sums[-1], side="right")])


@dataclass(eq=False, slots=True)
class TokenStream:
    """One request for tokens."""

    sequence: SequenceId
    prompt: Array
    """Token ids, [1, tokens], that were not executed yet."""
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
    """The number of executed tokens."""
    count: int = 0
    """The number of generated tokens."""
    rng: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.options.seed)


class Decodes(Protocol):
    """The used part of `Runtime`."""

    def infer(self, requests: Sequence[Any], callers: Sequence[Caller]) -> list[Answer]:
        """Execute requests of sequences."""

    def end_sequence(self, sequence: SequenceId) -> None:
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
            rows: Largest number of streams that are decoded together; others wait.
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

    @property
    def busy(self) -> bool:
        """True if there is a stream."""
        return bool(self._active or self._waiting)

    def add(self, stream: TokenStream) -> None:
        """Add a stream, which joins at the next step with a free row."""
        most = self._past + self._most_tokens
        if not 1 <= stream.prompt.shape[1] <= most:
            found = f"input '{self._ids}': found {stream.prompt.shape[1]} tokens"
            stream.fail(RequestFault(f"{found}, expected 1 to {most} (limit.past, limit.tokens)"))
            return
        self._waiting.append(stream)

    def step(self) -> None:
        """Execute all streams once."""
        now = self._clock.now()
        for streams in (self._active, self._waiting):
            for stream in tuple(streams):
                caller = Caller(deadline=stream.deadline, is_cancelled=stream.is_cancelled)
                reason = caller.abandonment(now, ask=True)
                if reason is not None:
                    streams.remove(stream)
                    self._end(stream, reason)
        while self._waiting and len(self._active) < self._rows:
            self._active.append(self._waiting.popleft())
        if not self._active:
            return
        chunks = [stream.prompt[:, : self._most_tokens] for stream in self._active]
        answers = self._runtime.infer(
            [
                {**stream.others, self._ids: chunk}
                for stream, chunk in zip(self._active, chunks, strict=True)
            ],
            [Caller(sequence=SequenceStep(own.sequence, not own.past)) for own in self._active],
        )
        streams, self._active = self._active, []
        for stream, chunk, answer in zip(streams, chunks, answers, strict=True):
            if isinstance(answer, BlocksTaken) and not stream.past and len(streams) > 1:
                self._waiting.appendleft(stream)  # until another stream ends
            elif isinstance(answer, Exception):
                self._end(stream, answer)
            else:
                self._advance(stream, chunk.shape[1], answer[self._logits])

    def end_all(self, error: Exception) -> None:
        """End all streams with an error."""
        streams = (*self._active, *self._waiting)
        self._active, self._waiting = [], deque()
        for stream in streams:
            self._end(stream, error)

    def _advance(self, stream: TokenStream, executed: int, logits: Array) -> None:
        """Continue a stream after the execution of its next tokens."""
        stream.past += executed
        stream.prompt = stream.prompt[:, executed:]
        if stream.prompt.size:
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
            self._runtime.end_sequence(stream.sequence)
        else:
            stream.prompt = np.full((1, 1), token, stream.prompt.dtype)
            self._active.append(stream)
        stream.emit(token, last)

    def _end(self, stream: TokenStream, error: Exception) -> None:
        self._runtime.end_sequence(stream.sequence)
        stream.fail(error)
