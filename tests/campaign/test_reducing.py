"""Reduction of failing inputs, and the folder of saved inputs."""

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.attack.reducing import keep, kept, reduced


@given(st.binary(max_size=60), st.binary(max_size=60), st.binary(max_size=60))
def test_only_necessary_bytes_remain(before, between, after):
    failing = before + b"\x01" + between + b"\x02" + after
    found = reduced(failing, lambda data: b"\x02" in data.partition(b"\x01")[2])
    assert found == b"\x01\x02"


def test_pieces_are_removed_as_a_whole():
    pieces = (b"open", b"a", b"b", b"ask", b"c")
    found = reduced(pieces, lambda some: b"open" in some and b"ask" in some)
    assert found == (b"open", b"ask")


def test_the_number_of_trials_is_limited():
    asked = []
    reduced(bytes(1000), lambda data: bool(asked.append(data)), most_trials=7)
    assert len(asked) == 7


def test_saved_inputs_are_found_by_kind(tmp_path):
    path = keep("http", b"bad", tmp_path)
    assert path.parent == tmp_path / "http"
    assert kept("http", tmp_path) == [b"bad"]
    assert kept("frames", tmp_path) == []
