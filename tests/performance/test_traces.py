"""The generated sizes of benchmarks: reproducible, with the documented distributions."""

import numpy as np
import pytest

from benchmarks import traces


@pytest.mark.parametrize("trace", traces.TOKEN_TRACES)
def test_lengths_are_reproducible_and_at_most_the_largest(trace):
    lengths = traces.token_lengths(trace, 20_000, seed=3)
    np.testing.assert_array_equal(lengths, traces.token_lengths(trace, 20_000, seed=3))
    assert (lengths != traces.token_lengths(trace, 20_000, seed=4)).any()
    assert 1 <= lengths.min() <= lengths.max() <= traces.LARGEST[trace]


def test_rows_have_their_lengths_and_batches_the_given_size():
    lengths = traces.token_lengths("mix", 70, seed=0)
    rows = traces.token_rows(lengths, seed=0)
    assert [row.shape for row in rows] == [(1, length) for length in lengths]
    assert [len(batch) for batch in traces.batches(rows, 32)] == [32, 32]


def test_images_are_within_their_size_limits():
    for image in traces.images(50, 1, seed=0):
        _, _, height, width = image.shape
        assert traces.SIDES.least <= min(height, width)
        assert max(height, width) <= traces.SIDES.largest
