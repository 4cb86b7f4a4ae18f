"""What two processes share: messages that arrive in order, and memory that comes back."""

import queue
import threading

import pytest
from server.backends.process.connections import connected
from server.support.requests import PATIENCE_S

from reference_server.core.errors import Code, ServerError

MEGABYTE = 1 << 20


def test_messages_go_to_the_handler_of_their_kind():
    came: queue.SimpleQueue[object] = queue.SimpleQueue()
    with connected(other={"a": lambda *x: came.put(("a", x)), "b": lambda: came.put("b")}) as ends:
        ends[0].send("a", 1, [2.5, None])
        ends[0].send("b")
        assert came.get() == ("a", (1, [2.5, None]))
        assert came.get() == "b"


def test_a_handler_that_fails_does_not_end_the_receiving(caplog):
    came = threading.Event()
    with connected(other={"bad": lambda: 1 / 0, "good": came.set}) as ends:
        ends[0].send("bad")
        ends[0].send("unknown")
        ends[0].send("good")
        assert came.wait(PATIENCE_S)
    assert "a message of kind bad was lost" in caplog.text
    assert "a message of kind unknown was lost" in caplog.text


def test_what_is_sent_later_goes_in_front_of_the_next_message():
    came: queue.SimpleQueue[str] = queue.SimpleQueue()
    with connected(
        other={"later": lambda: came.put("later"), "now": lambda: came.put("now")}
    ) as ends:
        ends[0].send_later("later")
        ends[0].send("now")
        assert [came.get(), came.get()] == ["later", "now"]


def test_empty_data_takes_no_room():
    with connected() as (one, other):
        assert one.put(memoryview(b"")) == (0, 0)
        assert bytes(other.view(0, 0)) == b""


def test_room_comes_back_with_the_other_sides_next_message():
    told = threading.Event()
    with connected(one={"hello": told.set}) as (one, other):
        view = other.view(*one.put(memoryview(bytes(MEGABYTE))))
        del view
        other.send("hello")
        assert told.wait(PATIENCE_S)
        assert one.put(memoryview(bytes(MEGABYTE))) == (0, MEGABYTE)


def test_if_there_is_no_room_the_other_side_is_asked_for_what_it_has_not_told_yet():
    with connected() as (one, other):
        view = other.view(*one.put(memoryview(bytes(MEGABYTE))))
        del view
        assert one.put(memoryview(bytes(MEGABYTE))) == (0, MEGABYTE)


def test_data_for_which_there_is_no_room_is_refused():
    with connected() as (one, other):
        view = other.view(*one.put(memoryview(bytes(MEGABYTE))))
        with pytest.raises(ServerError) as caught:
            one.put(memoryview(b"x"))
        assert caught.value.code is Code.INTERNAL
        assert caught.value.message == (
            "no room for a tensor of 1 bytes in the memory that is shared with the model's process"
        )
        del view


def test_the_thread_that_receives_does_not_wait_for_room():
    """It would wait for itself."""
    failed = threading.Event()

    def put() -> None:
        try:
            one.put(memoryview(b"x"))
        except ServerError:
            failed.set()

    with connected(one={"put": put}) as (one, other):
        view = other.view(*one.put(memoryview(bytes(MEGABYTE))))
        other.send("put")
        assert failed.wait(PATIENCE_S)
        del view


def test_nobody_waits_for_room_from_a_side_that_is_gone():
    with connected() as (one, other):
        view = other.view(*one.put(memoryview(bytes(MEGABYTE))))
        other.shut()
        with pytest.raises(ServerError, match="no room"):
            one.put(memoryview(b"x"))
        del view
