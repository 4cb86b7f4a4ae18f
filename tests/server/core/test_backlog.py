"""Unread responses: their size, the limits, and the calls of watchers."""

import threading
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from server.support.requests import PATIENCE_S, array_tensor, raw_tensor

from reference_server.core.backlog import MOST_RESPONSES, Backlog, Backlogs, Intake
from reference_server.core.errors import Code, ServerError
from reference_server.core.tensor import DataType

LIMIT, TOTAL_LIMIT, REDUCED_LIMIT = 10_000, 25_000, 1_000
COST = 512  # of a response without tensors


def tensor_of(size):
    return raw_tensor("Y", DataType.UINT8, (size,), bytes(size))


def of_size(size):
    return [tensor_of(size - COST)]


moves = st.tuples(
    st.integers(0, 3),
    st.one_of(
        st.tuples(st.just("add"), st.integers(COST, 12_000)),
        st.tuples(st.just("keep"), st.integers(0, 12_000)),
        st.tuples(st.sampled_from(("handled", "close")), st.just(0)),
    ),
)


@given(st.lists(moves, max_size=60))
def test_full_backlogs_are_reported_to_their_watchers(done):
    backlogs = Backlogs(LIMIT, TOTAL_LIMIT, REDUCED_LIMIT)
    each = [Backlog(backlogs) for _ in range(4)]
    posted, kept, closed = [[] for _ in each], [0] * 4, [False] * 4
    reported = [[] for _ in each]
    for backlog, heard in zip(each, reported, strict=True):
        backlog.watch(heard.append)
    for number, (what, size) in done:
        backlog = each[number]
        if what == "add":
            backlog.add(of_size(size))
            if not closed[number]:
                posted[number].append(size)
        elif what == "keep":
            backlog.keep(size)
            if not closed[number]:
                kept[number] = size
        elif what == "handled":
            backlog.handled()
            del posted[number][:1]
        else:
            backlog.close()
            closed[number], posted[number], kept[number] = True, [], 0
        sizes = [sum(p) + k for p, k in zip(posted, kept, strict=True)]
        full = [s > LIMIT or (s > REDUCED_LIMIT and sum(sizes) > TOTAL_LIMIT) for s in sizes]
        assert [one.size for one in each] == sizes
        for one, heard, is_full, own in zip(each, reported, full, sizes, strict=True):
            # The growth of another backlog takes effect with the next response to this one.
            assert one.is_full is is_full or (is_full and own <= LIMIT)
            assert heard[-1:] in ([one.is_full], [])
            assert all(a is not b for a, b in pairwise(heard))


@pytest.mark.parametrize("end", ["keep", "close", "lift"])
def test_a_model_waits_until_there_is_room(end):
    backlogs = Backlogs(LIMIT)
    backlog = Backlog(backlogs)
    backlog.wait()
    backlog.keep(LIMIT + 1)
    waits = threading.Thread(target=backlog.wait, daemon=True)
    waits.start()
    assert backlog.is_full
    {"keep": lambda: backlog.keep(LIMIT), "close": backlog.close, "lift": backlogs.lift}[end]()
    waits.join(PATIENCE_S)
    assert not waits.is_alive()


def test_a_watcher_gets_the_current_state_at_once_and_nothing_after_unwatch():
    backlog, heard = Backlog(Backlogs(LIMIT)), []
    backlog.keep(LIMIT + 1)
    backlog.watch(heard.append)
    assert heard == [True]
    backlog.unwatch(heard.append)
    backlog.keep(0)
    assert heard == [True]


@pytest.mark.parametrize(
    ("tensor", "size"),
    [
        (array_tensor("Y", np.zeros(100, np.float32)), 400),
        (tensor_of(100), 100),
        (array_tensor("Y", np.array([b"abcd", "efghij"], object)), 2 * (64 + 5)),
        (array_tensor("Y", np.array([b"x"] * 16 + [b"long"] * 84, object)), 100 * (64 + 1)),
        (array_tensor("Y", np.array([], object)), 0),
    ],
    ids=["array", "bytes", "strings", "many strings", "none"],
)
def test_the_size_of_a_response_is_estimated(tensor, size):
    backlog = Backlog(Backlogs())
    backlog.add([tensor])
    assert backlog.size == COST + size


def test_tiny_responses_are_limited_by_their_number():
    backlog = Backlog(Backlogs())
    for _ in range(MOST_RESPONSES):
        assert not backlog.is_full
        backlog.add([])
        backlog.keep(backlog.responses)  # a byte each: the connection keeps all of them
        backlog.handled()
    assert backlog.is_full


def test_responses_are_counted_until_the_client_has_read_them():
    backlog = Backlog(Backlogs(), most_responses=2)
    assert (backlog.responses, backlog.is_full) == (0, False)
    backlog.add([])
    assert not backlog.is_full
    backlog.add([])
    assert backlog.is_full
    backlog.keep(100)  # the connection now keeps the first response
    backlog.handled()
    assert (backlog.responses, backlog.is_full) == (2, True)
    backlog.keep(40)
    assert (backlog.responses, backlog.is_full) == (2, True)  # a partly sent response counts
    backlog.keep(0)
    assert (backlog.responses, backlog.is_full) == (1, False)
    backlog.keep(30)
    backlog.handled()
    backlog.keep(80)
    assert (backlog.responses, backlog.is_full) == (2, True)
    backlog.keep(20)  # all of the first, and some of the second
    assert (backlog.responses, backlog.is_full) == (1, False)
    backlog.close()
    assert backlog.responses == 0


LONG = 100_000


def test_a_request_is_charged_until_its_last_view_is_freed():
    intake = Intake()
    charge = intake.charge()
    assert charge.grow(600)
    assert charge.grow(400)
    view = charge.hold(np.zeros(1000, np.uint8))
    del charge
    assert intake.held == 1000
    part = view[10:20]
    array = np.ndarray((10,), np.uint8, part)
    del view, part
    assert intake.held == 1000
    thread = threading.Thread(target=lambda held: held.clear(), args=([array],))
    del array
    thread.start()
    thread.join()
    del thread
    assert intake.held == 0


def test_a_request_beyond_the_limit_is_refused_until_memory_is_freed():
    intake = Intake(2 * LONG)
    first = intake.keep(memoryview(bytes(LONG)))
    second = intake.keep(memoryview(bytes(LONG)))
    with pytest.raises(ServerError, match="100000 bytes rejected: the limit of") as caught:
        intake.keep(memoryview(bytes(LONG)))
    assert caught.value.code is Code.UNAVAILABLE
    assert not intake.charge().grow(1)
    assert intake.held == 2 * LONG
    del first
    assert intake.keep(memoryview(bytes(LONG))).nbytes == LONG
    assert intake.held == LONG
    assert second.nbytes == LONG


def test_small_requests_are_not_charged():
    intake = Intake(1)
    kept = intake.keep(memoryview(bytes(65_536)))
    assert (kept.nbytes, intake.held) == (65_536, 0)
