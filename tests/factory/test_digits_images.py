"""The drawing of digits: sizes, ranges, and the split that keeps evaluation honest."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_factory.digits_images import (
    SIZE_BUCKETS,
    draw_disturbed,
    draw_plain,
    draw_size,
    is_held_out,
    load_sources,
)

pytestmark = pytest.mark.brute_force

SOURCES = np.random.default_rng(0).random((3, 8, 8), np.float32)
SIZES = st.tuples(st.integers(6, 64), st.integers(6, 64))
SEEDS = st.integers(0, 2**32 - 1)


def test_held_out_sources_are_about_a_fifth_and_never_change():
    held_out = [index for index in range(1797) if is_held_out(index)]
    assert len(held_out) == 348
    assert held_out[:5] == [0, 4, 9, 15, 20]


def test_split_loses_no_source_and_shares_none():
    pytest.importorskip("sklearn", reason="the digits come with scikit-learn")
    training, held_out = load_sources(held_out=False), load_sources(held_out=True)
    assert len(training.images) + len(held_out.images) == 1797
    # Equal images on both sides would be one source that training has seen.
    seen = {image.tobytes() for image in training.images}
    assert not any(image.tobytes() in seen for image in held_out.images)


def test_sources_are_float32_from_dark_to_full_ink():
    pytest.importorskip("sklearn", reason="the digits come with scikit-learn")
    sources = load_sources(held_out=True)
    assert sources.images.dtype == np.float32
    assert (sources.images.min(), sources.images.max()) == (0, 1)
    assert set(sources.labels) == set(range(10))


@given(SEEDS, st.sampled_from(SIZE_BUCKETS))
def test_sizes_stay_in_their_bucket_and_near_half_to_double(seed, bucket):
    height, width = draw_size(np.random.default_rng(seed), bucket)
    longer, shorter = max(height, width), min(height, width)
    assert bucket[0] <= longer <= bucket[1]
    assert shorter >= 6
    assert shorter >= longer / 2 - 0.5  # rounded to a pixel


@given(SEEDS)
def test_plain_drawing_at_the_source_size_is_the_source(seed):
    drawn = draw_plain(SOURCES, (8, 8), np.random.default_rng(seed))
    np.testing.assert_allclose(drawn, SOURCES, atol=1e-6)


@given(SEEDS)
def test_plain_drawing_of_full_ink_is_full_ink_inside_and_fades_only_at_the_border(seed):
    drawn = draw_plain(np.ones((1, 8, 8), np.float32), (32, 24), np.random.default_rng(seed))
    np.testing.assert_allclose(drawn[0, 6:-6, 6:-6], 1, atol=1e-6)
    assert drawn[0, 0, 0] < 1


@pytest.mark.parametrize("draw", [draw_plain, draw_disturbed])
@given(SIZES, SEEDS)
def test_drawings_are_float32_in_range_and_of_the_size_asked_for(draw, size, seed):
    drawn = draw(SOURCES, size, np.random.default_rng(seed))
    assert (drawn.dtype, drawn.shape) == (np.float32, (3, *size))
    assert drawn.min() >= 0
    assert drawn.max() <= 1


@pytest.mark.parametrize("draw", [draw_plain, draw_disturbed])
def test_equal_seeds_draw_equal_images(draw):
    first, second = (draw(SOURCES, (20, 13), np.random.default_rng(7)) for _ in range(2))
    np.testing.assert_array_equal(first, second)
