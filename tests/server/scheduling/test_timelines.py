"""The pictures of the documentation page on schedulers match the schedulers."""

from pathlib import Path

import pytest

from tools import timelines


def batches(lives):
    found = {}
    for life in lives:
        found.setdefault(life.batch, []).append(life.name[-1])
    return found


def test_delay_makes_larger_batches():
    without, with_delay = timelines.delay().values()
    assert batches(without) == {0: ["1"], 1: ["2", "3", "4"], 2: ["5", "6", "7"], 3: ["8"]}
    assert batches(with_delay) == {0: ["1", "2", "3", "4"], 1: ["5", "6", "7", "8"]}


def test_first_level_overtakes_and_second_level_expires():
    (lives,) = timelines.priorities().values()
    assert batches(lives) == {
        0: ["1"],
        1: ["2", "1"],
        2: ["3", "2"],
        3: ["5"],
        -1: ["4"],
    }


def test_ordering_delays_responses():
    free, ordered = timelines.order().values()
    assert [life.answered for life in free] == [90, 25, 45, 95]
    assert [life.answered for life in ordered] == [90, 90, 90, 95]


@pytest.mark.brute_force
def test_each_picture_is_drawn(tmp_path: Path):
    timelines.main(tmp_path)
    assert {path.stem for path in tmp_path.iterdir()} == set(timelines.PICTURES)
