"""The caching scheduler: hits, misses, stored responses and statistics."""

import numpy as np
import pytest
from server.support.clock import ManualClock
from server.support.requests import Answers, a_request, array_tensor, signature
from server.support.traces import NotedTrace

from reference_server.core.errors import invalid_arg, unavailable
from reference_server.core.request import InferResponse, Timing
from reference_server.core.telemetry import Duration
from reference_server.core.tensor import DataType
from reference_server.observability.model_statistics import ModelStatistics
from reference_server.scheduling.response_cache import CachingScheduler, ResponseCache

SIGNATURE = signature({"X": (DataType.FP32, [1])}, {"Y": (DataType.FP32, [1])})


class Held:
    """A scheduler whose requests the test answers."""

    def __init__(self):
        self.waiting = []
        self.refusal = None
        self.is_closed = False

    @property
    def pending(self):
        return len(self.waiting)

    def submit(self, request):
        if self.refusal is not None:
            raise self.refusal
        self.waiting.append(request)

    def close(self):
        self.is_closed = True


class Bench:
    """A caching scheduler whose inner scheduler the test answers."""

    def __init__(self, cache=None, byte_size=10_000):
        self.clock = ManualClock(now_ns=1000)
        self.cache = cache or ResponseCache(byte_size, self.clock)
        self.statistics = ModelStatistics("m", 1, self.clock)
        self.inner = Held()
        self.scheduler = CachingScheduler(
            self.inner, self.cache, SIGNATURE, 1, self.statistics, self.clock
        )

    def submit(self, value=1, **fields):
        """Submit a request with one number, and return its sink."""
        answers = Answers()
        tensor = array_tensor("X", [value], np.float32)
        self.scheduler.submit(a_request(tensor, sink=answers, received_ns=400, **fields))
        return answers

    def answer(self, value=5, **fields):
        """Answer the waiting request."""
        outputs = [array_tensor("Y", [value], np.float32)]
        request = self.inner.waiting.pop()
        request.sink.send(InferResponse("m", 1, request.id, outputs, **fields))

    @property
    def counted(self):
        """The numbers of hits, misses and successes."""
        snapshot = self.statistics.snapshot()
        return snapshot.cache_hit.count, snapshot.cache_miss.count, snapshot.success.count


def test_miss_is_forwarded_and_its_response_stored():
    bench = Bench()
    first = bench.submit()
    assert bench.scheduler.pending == 1
    bench.answer(timing=Timing(1, 2, 3))
    assert first.wait().timing == Timing(1, 2, 3)
    second = bench.submit(id="other")
    response = second.wait()
    assert (response.id, response.final, response.timing) == ("other", True, None)
    assert response.outputs[0].array().tolist() == [5]
    assert bench.scheduler.pending == 0


def test_hits_and_misses_are_counted():
    bench = Bench()
    bench.submit()
    bench.answer()
    bench.submit()
    assert bench.counted == (1, 1, 1)  # the executor counts the miss as a success


def test_requests_in_flight_are_not_merged():
    bench = Bench()
    answers = [bench.submit(), bench.submit()]
    bench.answer(7)
    bench.answer(8)
    assert sorted(each.wait().outputs[0].array()[0] for each in answers) == [7, 8]
    assert bench.counted == (
        0,
        1,
        0,
    )  # the second response is stored already, so only one miss counts


@pytest.mark.parametrize(
    "fields", [{"error": invalid_arg("no")}, {"empty": True}, {"error": unavailable("no")}]
)
def test_errors_and_empty_responses_are_not_stored(fields):
    bench = Bench()
    answers = bench.submit()
    bench.answer(**fields)
    assert answers.wait().error is fields.get("error")
    bench.submit()
    assert bench.scheduler.pending == 1
    assert bench.counted == (0, 0, 0)


def test_failed_insertion_is_logged_and_counted(caplog):
    bench = Bench(byte_size=60)
    answers = bench.submit()
    bench.answer()
    assert answers.wait().error is None
    assert "into response cache: Requested byte_size: 304 is greater than total" in caplog.text
    assert bench.counted == (0, 1, 0)


def test_reloaded_model_does_not_hit():
    first = Bench()
    first.submit()
    first.answer()
    second = Bench(first.cache)
    second.submit()
    assert second.scheduler.pending == 1


def test_refused_request_keeps_its_sink():
    bench = Bench()
    bench.inner.refusal = unavailable("full")
    answers = Answers()
    request = a_request(array_tensor("X", [1], np.float32), sink=answers)
    with pytest.raises(type(bench.inner.refusal)):
        bench.scheduler.submit(request)
    assert request.sink is answers


def test_hit_is_timed():
    bench = Bench()
    bench.submit()
    bench.answer()
    bench.submit()
    snapshot = bench.statistics.snapshot()
    assert snapshot.success == Duration(1, 600)
    assert snapshot.queue == Duration(1, 0)
    assert snapshot.inference_count == snapshot.execution_count == 0


def test_trace_of_a_hit_has_the_outputs():
    bench = Bench()
    bench.submit()
    bench.answer()
    trace = NotedTrace()
    bench.submit(trace=trace)
    assert trace.events == [("answered", ["Y"], None)]


def test_close_closes_the_inner_scheduler():
    bench = Bench()
    bench.scheduler.close()
    assert bench.inner.is_closed


def test_cache_defects_do_not_prevent_the_response():
    class Failing:
        def cache_hit(self, request, began_ns, found_ns):
            raise ValueError("a defect")

        def cache_missed(self, ns):
            raise ValueError("a defect")

    bench = Bench()
    bench.scheduler.recorder = Failing()
    for _ in range(2):
        answers = bench.submit()
        if bench.inner.waiting:
            bench.answer()
        assert answers.wait().error is None
