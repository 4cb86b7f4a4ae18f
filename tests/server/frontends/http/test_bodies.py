"""Bodies while they come: in pieces and in place, and what they hold meanwhile."""

import numpy as np
import pytest

from reference_server.core.intake import Intake
from reference_server.frontends.http.bodies import Body, NoRoom

PIECE = bytes(40_000)


def test_pieces_are_joined_and_one_is_not_copied():
    body = Body(Intake())
    body.add(b"ab")
    assert body.whole().obj == b"ab"
    body.add(b"ab")
    body.add(b"c")
    assert body.whole() == b"abc"
    assert body.whole() == b""


def test_the_rest_comes_in_place_behind_the_pieces_and_is_aligned():
    body = Body(Intake())
    body.add(b"head")
    body.place(200_000, data_offset=4)
    assert (body.lacks, body.is_full) == (199_996, False)
    body.rest[:] = b"x" * 199_996
    body.filled(199_996)
    assert body.is_full
    whole = body.whole()
    assert whole == b"head" + b"x" * 199_996
    data = np.frombuffer(whole, np.uint8)[4:]
    assert data.__array_interface__["data"][0] % 64 == 0


@pytest.mark.parametrize("in_place", [False, True])
def test_a_long_body_is_counted_from_its_first_byte_until_it_is_freed(in_place):
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


def test_what_is_dropped_or_given_up_is_not_counted():
    intake = Intake()
    body = Body(intake)
    body.add(PIECE)
    body.add(PIECE)
    body.drop(10)
    assert (intake.held, body.received) == (0, 80_010)
    body.add(PIECE)
    assert intake.held == 120_010
    del body
    assert intake.held == 0


@pytest.mark.parametrize("in_place", [False, True])
def test_without_room_a_long_body_is_refused(in_place):
    body = Body(Intake(70_000))
    body.add(PIECE)
    if in_place:
        body.place(80_000, 0)
    with pytest.raises(NoRoom, match=r"80000 bytes rejected: the limit of 70000 bytes"):
        body.filled(40_000) if in_place else body.add(PIECE)


@pytest.mark.parametrize("length", [2**62, 2**64 - 1])
def test_what_no_memory_has_is_refused(length):
    with pytest.raises(NoRoom, match="does not fit the server's memory"):
        Body(Intake()).place(length, 0)
