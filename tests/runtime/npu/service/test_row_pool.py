"""Places of rows: no leak, no double release, no reuse while they are read; and their handles."""

import itertools

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule
from runtime.support.threads import Beside

from ge_runtime.config import ResidentTensor
from ge_runtime.errors import HandleFault, HandleGone, RowsTaken
from ge_runtime.npu.service.row_registry import RowPool, RowRegistry
from ge_runtime.specs import DType
from ge_runtime.testing import ManualClock

ROWS, READS, LEASE_S, SPARE_S = 5, 2, 10.0, 4.0
TENSOR = ResidentTensor("encoder", DType.FP32, (4,))


class Places(RuleBasedStateMachine):
    """Compares a pool with a model of its behaviour."""

    reserved = Bundle("reserved")
    rows = Bundle("rows")
    readings = Bundle("readings")

    def __init__(self):
        super().__init__()
        keys = (bytes([number % 256, number // 256]) for number in itertools.count())
        self.pool = RowPool(
            ROWS, reads=READS, lease_s=LEASE_S, spare_s=SPARE_S, new_key=lambda: next(keys)
        )
        self.now = 0.0
        self.writing = set()  # places
        self.left = {}  # key: place, how often it may still be read, until
        self.read_now = []  # keys

    def is_good(self, key):
        _, left, until = self.left[key]
        return until > self.now and left > self.read_now.count(key)

    def is_there(self, key):
        return self.read_now.count(key) > 0 or self.is_good(key)

    def spare(self):
        """Return the rows that may be evicted, the oldest first."""
        idle = [key for key in self.left if self.is_good(key) and key not in self.read_now]
        return [key for key in idle if self.left[key][2] - LEASE_S + SPARE_S <= self.now]

    def drop(self, key):
        place, _, until = self.left[key]
        self.left[key] = (place, 0, until)

    def in_use(self):
        return self.writing | {self.left[key][0] for key in self.left if self.is_there(key)}

    @rule(target=reserved, count=st.integers(0, ROWS))
    def reserve(self, count):
        free = ROWS - len(self.in_use())
        places = self.pool.reserve(count, self.now)
        if count > free:
            spare = self.spare()
            if count - free > len(spare):
                assert places is None
                return []
            for key in spare[: count - free]:  # the oldest make room
                self.drop(key)
        assert len(set(places)) == count
        assert not set(places) & self.in_use()  # nothing is reused while it is in use
        self.writing |= set(places)
        return places

    @rule(places=consumes(reserved))
    def give_back(self, places):
        self.pool.unreserve(places)
        self.writing -= set(places)

    @rule(target=rows, places=consumes(reserved))
    def publish(self, places):
        keys = self.pool.publish(places, self.now)
        self.writing -= set(places)
        for place, key in zip(places, keys, strict=True):
            assert key not in self.left
            self.left[key] = (place, READS, self.now + LEASE_S)
        return keys

    @rule(target=readings, keys=rows)
    def begin_read(self, keys):
        begun = []
        for key in keys:
            place, _, _ = self.left[key]
            assert self.pool.begin_read(place, key, self.now) == self.is_good(key)
            if self.is_good(key):
                self.read_now.append(key)
                begun.append(key)
        return begun

    @rule(keys=rows, key=st.binary(min_size=2, max_size=2))
    def guess(self, keys, key):
        for place, own in [(self.left[own][0], own) for own in keys]:
            if key not in self.left or self.left[key][0] != place:
                assert key == own or not self.pool.begin_read(place, key, self.now)

    @rule(keys=consumes(readings), done=st.booleans())
    def end_read(self, keys, done):
        for key in keys:
            place, left, until = self.left[key]
            self.pool.end_read(place, self.now, done=done)
            self.read_now.remove(key)
            self.left[key] = (place, left - done, until)

    @rule(keys=rows, other=st.booleans())
    def let_go(self, keys, other):
        for key in keys:
            place, _, _ = self.left[key]
            self.pool.release(place, b"no" if other else key, self.now)
            if not other:
                self.drop(key)

    @rule(seconds=st.sampled_from([1.0, SPARE_S, LEASE_S / 2, LEASE_S]))
    def wait(self, seconds):
        self.now += seconds

    @rule()
    def clear(self):
        self.pool.clear()
        self.left = {key: (place, 0, until) for key, (place, _, until) in self.left.items()}

    @invariant()
    def every_place_is_in_one_state(self):
        pool = self.pool
        assert sorted([*pool._free, *pool._reserved, *pool._held]) == list(range(ROWS))
        assert pool._reserved == self.writing
        assert pool.taken >= len(self.in_use())
        assert pool.read_now == len({self.left[key][0] for key in self.read_now})

    def teardown(self):
        """After all reads and writes have ended, all places are free."""
        for key in self.read_now:
            self.pool.end_read(self.left[key][0], self.now, done=True)
        self.pool.unreserve([*self.writing])
        assert self.pool.reserve(ROWS, self.now + LEASE_S) == list(range(ROWS))


TestPlaces = Places.TestCase
TestPlaces.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


# ----------------------------------------------------------------------------------- handles


class Freed:
    def __init__(self):
        self.times = 0

    def __call__(self):
        self.times += 1


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def registry(clock):
    return RowRegistry(clock)


def store(registry, rows=4, *, tensor=TENSOR, reads=1, free=lambda: None):
    return registry.add(
        tensor, rows, reads=reads, lease_s=LEASE_S, spare_s=SPARE_S, start=6400, free=free
    )


def published(registry, own, count):
    return registry.publish(own, registry.reserve(own, count, 0.0))


def test_handles_lead_to_their_places_once(registry):
    own, other = store(registry), store(registry)
    handles = np.concatenate([published(registry, other, 1), published(registry, own, 3)])
    reading = registry.read("x", TENSOR, handles[[3, 0, 1]])
    assert reading.addresses == [6400 + 2 * 64, 6400, 6400]
    with pytest.raises(HandleGone, match="input 'x'"):  # because it is being read
        registry.read("x", TENSOR, handles[[2, 3]])
    reading.end(done=True)
    with pytest.raises(HandleGone):
        registry.read("x", TENSOR, handles[:1])
    registry.read("x", TENSOR, handles[2:3]).end(done=False)
    registry.read("x", TENSOR, handles[2:3]).end(done=True)  # what failed may come again
    assert (own.pool.taken, other.pool.taken) == (0, 0)


@pytest.mark.parametrize("word", range(4))
def test_no_handle_with_a_changed_word_leads_anywhere(registry, word):
    (handle,) = published(registry, store(registry), 1)
    for bit in range(64):
        changed = handle.copy()
        changed[word] ^= np.uint64(1 << bit)
        with pytest.raises(HandleGone):
            registry.read("x", TENSOR, changed[None])
    registry.read("x", TENSOR, handle[None]).end(done=True)


def test_handles_of_another_service_lead_nowhere(registry, clock):
    handles = published(registry, store(registry), 1)
    following = RowRegistry(clock)
    published(following, store(following), 1)
    with pytest.raises(HandleGone):
        following.read("x", TENSOR, handles)


@pytest.mark.parametrize(
    "other",
    [
        ResidentTensor("decoder", DType.FP32, (4,)),
        ResidentTensor("encoder", DType.INT32, (4,)),
        ResidentTensor("encoder", DType.FP32, (2, 2)),
    ],
    ids=str,
)
def test_handles_of_another_tensor_are_refused_by_name(registry, other):
    handles = published(registry, store(registry, tensor=other), 1)
    with pytest.raises(HandleFault) as raised:
        registry.read("x", TENSOR, handles)
    assert str(raised.value) == (
        f"input 'x': found a handle of {other}, expected FP32[4] of encoder"
    )
    assert not isinstance(raised.value, HandleGone)
    registry.read("x", other, handles).end(done=True)  # it was not taken for read


def test_a_full_store_is_waited_for_until_the_deadline(registry, clock):
    own = store(registry)
    handles = published(registry, own, 3)
    with pytest.raises(RowsTaken, match=r"found 3 of 4 places of FP32\[4\] of encoder taken"):
        registry.reserve(own, 2, clock.now())
    waiting = Beside(registry.reserve, own, 2, clock.now() + 5.0)
    clock.until_waiting(1)
    registry.read("x", TENSOR, handles[:1]).end(done=True)
    assert waiting.result() == [0, 3]


def test_more_rows_than_there_are_places_are_refused_at_once(registry, clock, monkeypatch):
    own = store(registry)
    monkeypatch.setattr(clock, "wait", lambda *_: pytest.fail("waited"))
    with pytest.raises(RowsTaken, match=r"found 0 of 4 places .*, expected 5 free ones"):
        registry.reserve(own, 5, clock.now() + 5.0)


def test_a_row_expires_before_it_may_be_evicted_if_its_lease_is_shorter():
    pool = RowPool(1, reads=1, lease_s=4.0, spare_s=10.0, new_key=lambda: b"key")
    pool.publish(pool.reserve(1, 0.0), 0.0)
    assert pool.next_end() == 4.0
    assert pool.reserve(1, 4.0) == [0]


def test_the_oldest_unread_rows_are_evicted(registry, clock):
    own = store(registry)
    oldest, read = published(registry, own, 1), published(registry, own, 1)
    clock.advance(1.0)
    younger = published(registry, own, 2)
    reading = registry.read("x", TENSOR, read)
    waiting = Beside(registry.reserve, own, 1, clock.now() + LEASE_S)
    clock.until_waiting(1)
    clock.advance(SPARE_S - 1.0)
    assert waiting.result() == [0]
    with pytest.raises(HandleGone, match="it expired or was evicted"):
        registry.read("x", TENSOR, oldest)
    reading.end(done=True)  # its place is as it was
    assert registry.read("x", TENSOR, younger).addresses == own.addresses([2, 3])


def test_only_rows_of_failed_requests_are_released(registry, clock):
    own = store(registry)
    failed, other = published(registry, own, 1), published(registry, own, 3)
    forged = other.copy()
    forged[:, 3] ^= np.uint64(1)
    elsewhere = failed.copy()
    elsewhere[:, 1] += np.uint64(2**40)
    registry.release(np.concatenate([forged, elsewhere, failed, failed, np.zeros_like(failed)]))
    assert own.pool.taken == 3
    with pytest.raises(HandleGone, match="its request failed"):
        registry.read("x", TENSOR, failed)
    reading = registry.read("x", TENSOR, other)
    registry.release(other[:1])
    assert own.pool.taken == 3  # it is being read
    reading.end(done=False)
    assert own.pool.taken == 2


def test_memory_goes_with_the_last_reader(registry, clock):
    free = Freed()
    own = store(registry, free=free)
    handles = published(registry, own, 2)
    reading = registry.read("x", TENSOR, handles[:1])
    removal = Beside(registry.remove, own)
    clock.until_waiting(1)
    with pytest.raises(HandleGone):
        registry.read("x", TENSOR, handles[1:])
    assert free.times == 0
    reading.end(done=False)
    removal.result()
    assert free.times == 1
