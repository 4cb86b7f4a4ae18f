"""The loop: requests in flight, and the start of latencies."""

import time

from replay.wire.peers import asked, grpc_loop

NEVER = 2**63 - 1


def test_a_closed_loop_keeps_its_number_of_requests_in_flight():
    def script(peer):
        waiting = [peer.call() for _ in range(3)]
        for _ in range(3):
            peer.answer(waiting.pop(0))
            waiting.append(peer.call())
        for stream in waiting:
            peer.answer(stream)

    with grpc_loop(script, in_flight=3) as loop:
        assert asked(loop, 3, 6) == [""] * 6


def test_the_wait_of_a_due_request_counts_as_latency():
    """Three requests are overdue and one may be in flight: no coordinated omission."""

    def script(peer):
        for _ in range(3):
            peer.answer(peer.call())

    with grpc_loop(script) as loop:
        now = time.perf_counter_ns()
        dues = [now - 3_000_000_000, now - 2_000_000_000, now - 1_000_000_000]
        loop.follow(iter(dues), limit=1)
        loop.run(NEVER, 3)
        assert list(loop.record.starts) == dues
        assert all(end >= now for end in loop.record.ends)
        # The first could have been sent in time, the others waited for the server.
        assert loop.record.late == 1


def test_requests_that_wait_at_the_end_are_counted_and_not_sent():
    def script(peer):
        peer.answer(peer.call())

    with grpc_loop(script) as loop:
        now = time.perf_counter_ns()
        loop.follow(iter([now, now, now]), limit=1)
        loop.run(now + 1)
        assert loop.stop() == 2
        loop.drain()
        assert len(loop.record.ends) == 1
