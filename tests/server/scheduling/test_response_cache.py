"""The response cache and the caching scheduler."""

import tracemalloc
from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from server.support.clock import ManualClock
from server.support.requests import Answers, a_request, array_tensor, raw_tensor, signature
from server.support.traces import NotedTrace

from reference_server.core.errors import invalid_arg, unavailable
from reference_server.core.request import InferResponse, Timing
from reference_server.core.tensor import DataType, Tensor
from reference_server.observability.model_statistics import ModelStatistics
from reference_server.scheduling.response_cache import (
    OUTPUT_OVERHEAD_BYTES,
    CachingScheduler,
    LeastRecentlyUsed,
    NotStored,
    ResponseCache,
    key_of,
)

OUTPUTS = frozenset({"Y", "Z"})


# ------------------------------------------------------------------------------------ the entries


@pytest.mark.brute_force
@given(
    st.integers(1, 20),
    st.lists(st.tuples(st.integers(0, 5), st.one_of(st.none(), st.integers(0, 12)))),
)
def test_least_recently_used_entries_are_evicted(size, steps):
    """Compare with a simple reference model: an ordered dict of all entries."""
    entries, expected, evictions = LeastRecentlyUsed(size), OrderedDict(), 0
    for key, bytes_put in steps:
        if bytes_put is None or key in expected:
            found = entries.get(key)
            assert (found is not None) == (key in expected)
            if found is not None:
                expected.move_to_end(key)
        elif bytes_put > size:
            with pytest.raises(NotStored):
                entries.put(key, (), bytes_put)
        else:
            entries.put(key, (), bytes_put)
            while sum(expected.values()) + bytes_put > size:
                expected.popitem(last=False)
                evictions += 1
            expected[key] = bytes_put
        assert (len(entries), entries.used_bytes) == (len(expected), sum(expected.values()))
        assert entries.used_bytes <= size
        assert entries.evictions == evictions
        assert all(key in entries for key in expected)


# -------------------------------------------------------------------------------------- the cache


@pytest.fixture
def cache():
    return ResponseCache(10_000, ManualClock())


def numbers(*values, name="Y"):
    return array_tensor(name, list(values), np.float32)


def test_stored_response_is_found(cache):
    assert cache.lookup("k") is None
    assert cache.insert("k", [numbers(1, 2), numbers(3, name="Z")])
    found = cache.lookup("k")
    assert [(tensor.name, tensor.datatype, tensor.shape) for tensor in found] == [
        ("Y", DataType.FP32, (2,)),
        ("Z", DataType.FP32, (1,)),
    ]
    assert [tensor.array().tolist() for tensor in found] == [[1, 2], [3]]


def test_writing_to_outputs_does_not_change_the_cache(cache):
    array = np.array([1, 2], np.float32)
    cache.insert("k", [Tensor("Y", DataType.FP32, (2,), array=array)])
    array[:] = 9
    (first,) = cache.lookup("k")
    first.array()[:] = 8
    (second,) = cache.lookup("k")
    assert second.array().tolist() == [1, 2]


def test_client_buffers_are_not_kept(cache):
    body = bytearray(np.array([1, 2], np.float32).tobytes())
    cache.insert("k", [Tensor("Y", DataType.FP32, (2,), raw=memoryview(body))])
    body[:] = bytes(8)
    (found,) = cache.lookup("k")
    assert found.array().tolist() == [1, 2]


def test_stored_response_is_not_replaced(cache):
    assert cache.insert("k", [numbers(1)])
    assert not cache.insert("k", [numbers(2)])
    assert cache.lookup("k")[0].array().tolist() == [1]


def test_outputs_without_elements_are_not_stored(cache):
    with pytest.raises(NotStored, match="Response buffer from output was nullptr"):
        cache.insert("k", [numbers(1), numbers(name="Z")])
    assert cache.lookup("k") is None


def test_response_larger_than_the_cache_is_not_stored(cache):
    size = 10_000 + OUTPUT_OVERHEAD_BYTES
    with pytest.raises(
        NotStored, match=f"Requested byte_size: {size} is greater than total cache size: 10000"
    ):
        cache.insert("k", [numbers(*range(2500))])


def test_small_responses_take_about_the_memory_that_they_are_charged():
    cache = ResponseCache(1 << 18, ManualClock())
    tracemalloc.start()
    try:
        while not cache.reading().evictions:
            cache.insert(b"%016d" % cache.reading().entries, [numbers(1)])
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert held < 1.5 * (1 << 18)


def test_reading_has_the_counters(cache):
    cache.insert("a", [numbers(*range(1000))])
    cache.insert("b", [numbers(*range(1000))])
    cache.lookup("a")
    cache.insert("c", [numbers(*range(1000))])
    for key in "abc":
        cache.lookup(key)
    reading = cache.reading()
    assert (reading.entries, reading.evictions) == (2, 1)
    assert (reading.hits, reading.misses, reading.lookups) == (3, 1, 4)
    assert reading.utilization == 2 * (4000 + OUTPUT_OVERHEAD_BYTES) / 10_000


# --------------------------------------------------------------------------------------- the keys


def key(*tensors, served=("m", 1, 0), **fields):
    return key_of(a_request(*tensors, **fields), served, OUTPUTS)


A, B = array_tensor("A", [1, 2, 3, 4], np.int32), array_tensor("B", [5], np.int32)


@pytest.mark.parametrize(
    "same",
    [
        key(A, B, id="i", parameters={"p": 1}, priority=3, timeout_us=7),
        key(B, A),
        key(A, B, requested_outputs=("Z", "Y")),
        key(raw_tensor("A", DataType.INT32, [4], bytes(A.raw())), B),
    ],
)
def test_fields_that_are_not_in_the_key(same):
    assert key(A, B) == same


@pytest.mark.parametrize(
    "other",
    [
        key(A),
        key(A, array_tensor("B", [6], np.int32)),
        key(A, array_tensor("C", [5], np.int32)),
        key(A.renamed("A", (2, 2)), B),
        key(raw_tensor("A", DataType.UINT32, [4], bytes(A.raw())), B),
        key(array_tensor("A", [1, 2, 3], np.int32), array_tensor("B", [4, 5], np.int32)),
        key(A.renamed("B"), B.renamed("A")),
        key(A, B, requested_outputs=("Y",)),
        key(A, B, served=("m", 2, 0)),
        key(A, B, served=("n", 1, 0)),
    ],
)
def test_fields_that_are_in_the_key(other):
    assert key(A, B) != other


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


def test_trace_of_a_hit_has_the_outputs():
    bench = Bench()
    bench.submit()
    bench.answer()
    trace = NotedTrace()
    bench.submit(trace=trace)
    assert trace.events == [("answered", ["Y"], None)]


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
