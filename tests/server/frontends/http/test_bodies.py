"""The body of an HTTP request while it is received: in pieces and in place, and its memory."""

import tracemalloc

import pytest

from reference_server.core.backlog import Intake
from reference_server.frontends.http.request import Body, RequestRejected

PIECE = bytes(40_000)


@pytest.mark.parametrize("in_place", [False, True])
def test_a_long_body_is_charged_from_its_first_byte_until_it_is_freed(in_place):
    intake = Intake()
    body = Body(intake)
    body.add(PIECE)
    assert intake.held == 0
    if in_place:
        body.place(80_000, 0)
        assert intake.held == 40_000
        body.filled(40_000)
    else:
        body.add(PIECE)
    assert intake.held == 80_000
    whole = body.whole()
    del body
    assert intake.held == 80_000
    del whole
    assert intake.held == 0


def test_dropped_bodies_are_not_charged():
    intake = Intake()
    body = Body(intake, 80_000)
    body.receive(PIECE, {})
    body.receive(PIECE, {})
    assert intake.held == 80_000
    body.receive(bytes(10), {})
    assert (intake.held, body.received, body.exceeds({})) == (0, 80_010, True)
    body.receive(PIECE, {})
    assert (intake.held, body.received) == (0, 120_010)


@pytest.mark.parametrize("in_place", [False, True])
def test_a_long_body_is_rejected_if_the_budget_is_exhausted(in_place):
    body = Body(Intake(70_000))
    body.add(PIECE)
    if in_place:
        body.place(80_000, 0)
    with pytest.raises(RequestRejected, match=r"80000 bytes rejected: the limit of 70000 bytes"):
        body.filled(40_000) if in_place else body.add(PIECE)


def test_pieces_of_one_byte_cost_no_object_each():
    body = Body(Intake())
    body.add(b"x")
    tracemalloc.start()
    try:
        for _ in range(50_000):
            body.add(b"y")
        assert tracemalloc.get_traced_memory()[1] < 150_000
    finally:
        tracemalloc.stop()
    assert body.whole() == b"x" + b"y" * 50_000
