"""Streams of tokens: the executions of a step, and the chosen tokens."""

import numpy as np
import pytest

from ge_runtime.errors import BlocksTaken, Cancelled, Expired, RequestFault
from ge_runtime.scheduling.token_streams import SamplingOptions, TokenStream, TokenStreams
from ge_runtime.testing import ManualClock

WORDS = 5


class Successors:
    """A decoder after whose tokens the next number follows; records each step.

    Sequences share blocks of one token. A broken decoder has no number after 4.
    """

    def __init__(self, blocks=100, *, broken=False):
        self.steps, self.ended, self.running = [], [], {}
        self.blocks, self.broken = blocks, broken
        self.others = []

    def infer(self, requests, callers):
        self.others += [request.get("encoder") for request in requests]
        self.steps.append(
            {
                own.sequence.sequence: (request["ids"][0].tolist(), own.sequence.starts)
                for request, own in zip(requests, callers, strict=True)
            }
        )
        return [self._answer(*given) for given in zip(requests, callers, strict=True)]

    def _answer(self, request, caller):
        sequence = caller.sequence.sequence
        size = self.running.get(sequence, 0) + request["ids"].shape[1]
        if size + sum(self.running.values()) - self.running.get(sequence, 0) > self.blocks:
            return BlocksTaken("full")
        self.running[sequence] = size
        logits = np.zeros((1, request["ids"].shape[1], WORDS), np.float32)
        logits[0, -1, (request["ids"][0, -1] + 1) % WORDS] = 1
        if request["ids"][0, -1] == 4 and self.broken:
            logits[0, -1, 2] = np.nan
        return {"logits": logits}

    def end_sequence(self, sequence, *, departed=False):
        self.ended.append(sequence)
        self.running.pop(sequence, None)


class Client:
    """The receiver of a stream."""

    def __init__(self, sequence, prompt, others=None, **options):
        self.tokens, self.error, self.cancelled = [], None, False
        self.stream = TokenStream(
            sequence,
            np.array([prompt]),
            others or {},
            SamplingOptions(**options),
            lambda: self.cancelled,
            lambda token, last: self.tokens.append((token, last)),
            lambda error: setattr(self, "error", error),
        )


def streams_on(runtime, **sizes):
    return TokenStreams(
        runtime, "ids", "logits", **{"rows": 2, "most_tokens": 3, "past": 8, **sizes}
    )


def test_streams_join_and_leave_between_steps():
    runtime = Successors()
    streams = streams_on(runtime)
    first = Client(1, [0, 1], max_tokens=2)
    second = Client(2, [3], stop_token=1)
    third = Client(3, [2], max_tokens=1)
    streams.add(first.stream)
    streams.step()
    for client in (second, third):
        streams.add(client.stream)
    while streams.busy:
        streams.step()
    assert runtime.steps == [
        {1: ([0, 1], True)},
        {1: ([2], False), 2: ([3], True)},  # the third waits for a row
        {2: ([4], False), 3: ([2], True)},
        {2: ([0], False)},
    ]
    assert first.tokens == [(2, False), (3, True)]
    assert second.tokens == [(4, False), (0, False), (1, True)]
    assert third.tokens == [(3, True)]
    assert runtime.ended == [1, 3, 2]


def test_cancelled_streams_free_their_states_before_the_next_step():
    runtime = Successors()
    streams = streams_on(runtime)
    clients = [Client(at, [0]) for at in range(3)]
    for client in clients:
        streams.add(client.stream)
    streams.step()
    clients[0].cancelled = clients[2].cancelled = True  # one runs, the other waits
    streams.step()
    assert runtime.ended == [0, 2]
    assert list(runtime.steps[-1]) == [1]
    assert isinstance(clients[0].error, Cancelled)
    clients[1].cancelled = True
    streams.step()
    assert not streams.busy
    assert len(runtime.steps) == 2


def test_a_stream_past_its_deadline_ends_before_the_next_step():
    runtime, clock = Successors(), ManualClock()
    streams = streams_on(runtime, clock=clock)
    clients = [Client(at, [0]) for at in range(2)]
    clients[0].stream.deadline = clock.now() + 1
    for client in clients:
        streams.add(client.stream)
    streams.step()
    clock.advance(2)
    streams.step()
    assert isinstance(clients[0].error, Expired)
    assert runtime.ended == [0]
    assert list(runtime.steps[-1]) == [1]


def test_long_prompts_are_executed_in_parts_and_past_their_limit_a_stream_ends():
    runtime = Successors()
    streams = streams_on(runtime, past=4)
    client = Client(1, [0, 1, 2, 3], {"encoder": 7})
    streams.add(client.stream)
    while streams.busy:
        streams.step()
    assert [step[1][0] for step in runtime.steps] == [[0, 1, 2], [3], [4]]
    assert client.tokens == [(4, False), (0, True)]
    assert runtime.others == [7, 7, 7]  # other inputs are the same in each step
    # The largest prompt; the last request of each prompt begins within the limit.
    for past, parts in ((4, [3, 1, 3]), (5, [3, 2, 3]), (6, [3, 3, 3])):
        runtime = Successors()
        streams = streams_on(runtime, past=past)
        client = Client(1, [0] * (past + 3))
        streams.add(client.stream)
        while streams.busy:
            streams.step()
        assert [len(step[1][0]) for step in runtime.steps] == parts
        assert client.tokens == [(1, True)]


@pytest.mark.parametrize("blocks", [6, 9, 14, 19])
def test_streams_without_free_blocks_are_executed_again_after_others(blocks):
    runtime = Successors(blocks=blocks)
    streams = streams_on(runtime, rows=4)
    clients = [Client(at, [at, 1 + at], max_tokens=5) for at in range(6)]
    for client in clients:
        streams.add(client.stream)
    while streams.busy:
        streams.step()
        assert len(runtime.steps) < 80
    for at, client in enumerate(clients):
        expected = [(at + 2 + step) % WORDS for step in range(5)]
        assert client.tokens == [(token, token is expected[-1]) for token in expected]
    assert runtime.running == {}


def test_a_postponed_stream_starts_again_when_another_has_ended():
    runtime = Successors(blocks=5)
    streams = streams_on(runtime, rows=3)
    for at in range(3):
        streams.add(Client(at, [at], max_tokens=4).stream)
    while streams.busy:
        streams.step()
    assert [list(step) for step in runtime.steps] == [
        [0, 1, 2],  # a block each
        [0, 1, 2],  # the last finds none
        [0, 1],  # nor does the second
        [0],
        [1, 2],  # these continue with all their tokens
        [1, 2],  # neither finds a block
        [1],
        [2],
        [2],
    ]


def test_a_stream_that_finds_no_blocks_alone_ends():
    runtime = Successors(blocks=1)
    runtime.running["another model's"] = 1
    streams, alone = streams_on(runtime), Client(3, [0])
    streams.add(alone.stream)
    streams.step()
    assert isinstance(alone.error, BlocksTaken)


def test_logits_that_are_not_finite_end_their_stream_alone():
    runtime = Successors(broken=True)
    streams = streams_on(runtime)
    clients = [Client(1, [3], temperature=1e-320), Client(2, [0], temperature=1e-320, max_tokens=4)]
    for client in clients:
        streams.add(client.stream)
    while streams.busy:
        streams.step()
    assert clients[0].tokens == [(4, False)]
    assert str(clients[0].error) == "logits: found nan, expected finite numbers"
    assert clients[1].tokens == [(1, False), (2, False), (3, False), (4, True)]
    assert runtime.running == {}


@pytest.mark.parametrize("prompt", [[], [0] * 12])
def test_prompts_of_no_or_too_many_tokens_are_refused(prompt):
    client = Client(1, prompt)
    streams = streams_on(Successors())
    streams.add(client.stream)
    assert not streams.busy
    assert str(client.error).endswith(
        f"found {len(prompt)} tokens, expected 1 to 11 (limit.past, limit.tokens)"
    )


def test_all_streams_end_with_an_error():
    streams = streams_on(Successors())
    clients = [Client(at, [0]) for at in range(3)]
    for client in clients:
        streams.add(client.stream)
    streams.step()
    streams.end_all(RuntimeError("broken"))
    assert not streams.busy
    assert all(isinstance(client.error, RuntimeError) for client in clients)


def test_tokens_are_drawn_from_the_largest_logits_by_seed():
    logits = np.array([0.0, 3.0, 2.5, -1.0, 2.9], np.float32)

    def drawn(seed, **options):
        rng = np.random.default_rng(seed)
        return [SamplingOptions(**options).sample(logits, rng) for _ in range(200)]

    assert set(drawn(0)) == set(drawn(0, temperature=2.0, top_k=1)) == {1}
    assert set(drawn(0, temperature=1.0, top_k=3)) == {1, 2, 4}
    assert set(drawn(0, temperature=9.0)) == {0, 1, 2, 3, 4}
    assert drawn(5, temperature=1.0) == drawn(5, temperature=1.0) != drawn(6, temperature=1.0)
    # The shares of softmax.
    own = drawn(1, temperature=1.0, top_k=2)
    assert own.count(1) / 200 == pytest.approx(1 / (1 + np.exp(-0.1)), abs=0.1)


@pytest.mark.parametrize("option", ["max_tokens", "temperature", "top_k", "seed"])
def test_options_below_zero_are_refused(option):
    with pytest.raises(RequestFault, match=f"input '{option}': found -1, expected at least 0"):
        SamplingOptions(**{option: -1}).check()
