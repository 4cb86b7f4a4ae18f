"""Random requests are valid for their model, and cover its bounds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from runtime.support.parsing import parse
from runtime.testing.models import (
    DOUBLED,
    FREE,
    GEARED,
    GEARED_IMAGES,
    JOINT,
    OPTIONAL,
    PREPARED,
    ROWLESS,
    TAGGED,
    TOKENS,
)

from ge_runtime.batching.admission import Admission
from ge_runtime.batching.gears import Gears
from ge_runtime.errors import RuntimeFault
from ge_runtime.specs import DType
from ge_runtime.testing.random_requests import ENOUGH_ELEMENTS, RequestGenerator
from ge_runtime.verification.elements import poison_of

pytestmark = pytest.mark.brute_force

MODELS = [
    FREE,
    GEARED,
    JOINT,
    GEARED_IMAGES,
    TOKENS,
    OPTIONAL,
    TAGGED,
    ROWLESS,
    PREPARED,
    DOUBLED,
]


def generator_of(model, ranges=None):
    config = parse(model.config)
    gears = Gears(list(config.limits), config.limits, config.rows, config.gears)
    return config, gears, RequestGenerator(config, gears, ranges or {})


def requests_from(model, batches=100, ranges=None):
    generator = generator_of(model, ranges)[2]
    return [
        request
        for seed in range(batches)
        for request in generator.request_batch(np.random.default_rng(seed))
    ]


@given(st.sampled_from(MODELS), st.integers(0, 999))
def test_the_model_accepts_every_request(model, seed):
    config, gears, generator = generator_of(model)
    admission = Admission(
        config.sources,
        config.limits,
        config.axis_lengths,
        config.rows if config.batched else 0,
        defaults=config.defaults,
        outputs=config.outputs,
        gears=gears,
    )
    batch = generator.request_batch(np.random.default_rng(seed))
    assert batch
    for request in batch:
        block, extent = admission.admit(request.given), request.extent
        assert (block.rows, block.sizes) == (extent.rows, extent.sizes)
        assert all(extent.ends[axis] == ends for axis, ends in block.lengths.items())


def test_equal_seeds_draw_equal_requests():
    first, second = requests_from(OPTIONAL, 5), requests_from(OPTIONAL, 5)
    assert [str(request) for request in first] == [str(request) for request in second]
    for one, other in zip(first, second, strict=True):
        np.testing.assert_equal(one.given, other.given)


def test_sizes_are_at_limits_at_gears_and_between():
    batch = requests_from(GEARED)
    sizes = {request.extent.sizes["tokens"] for request in batch}
    assert sizes >= {1, 2, 3, 4, 5, 15, 16, 17, 31, 32}
    assert len(sizes) > 20
    assert {request.extent.rows for request in batch} == {1, 2, 3, 4, 5, 6, 7, 8}


def test_a_request_batch_stays_affordable_as_one_execution():
    limits = {"limit.tokens": "512"}
    model = type(FREE)(FREE.graph, {**FREE.config, "max_batch_size": 64})
    model.config["parameters"] = {
        **FREE.config["parameters"],
        **{key: {"string_value": text} for key, text in limits.items()},
    }
    generator = generator_of(model)[2]
    largest = 0
    for seed in range(100):
        batch = generator.request_batch(np.random.default_rng(seed))
        rows = sum(request.extent.rows for request in batch)
        largest = max(largest, rows * max(request.extent.sizes["tokens"] for request in batch))
    assert ENOUGH_ELEMENTS / 2 < largest <= ENOUGH_ELEMENTS


def test_rows_end_anywhere_and_poison_follows():
    batch = requests_from(FREE, ranges={"input_ids": (3, 9)})
    shorter = 0
    for request in batch:
        lengths = request.given["lengths"].ravel()
        assert request.extent.ends["tokens"] == lengths.tolist()
        for row, length in zip(request.given["input_ids"], lengths, strict=True):
            assert ((row[:length] >= 3) & (row[:length] < 9)).all()
            assert (row[length:] == poison_of(DType.INT64)).all()
            shorter += length < len(row)
    assert shorter > 20


def test_optional_inputs_may_be_missing_and_rows_without_lengths_are_full():
    batch = requests_from(OPTIONAL)
    missing = {frozenset(request.complete.keys() - request.given.keys()) for request in batch}
    assert len(missing) == 4  # none, one, the other, both
    for request in batch:
        sizes = np.full(request.extent.rows, request.extent.sizes["tokens"])
        if "lengths" not in request.given:
            assert (request.complete["lengths"].ravel() == sizes).all()
            assert "rows end" not in str(request)
        if "attention_mask" not in request.given:
            assert (request.complete["attention_mask"] == 1).all()
            assert "without attention_mask" in str(request)


def test_tensors_are_prepared_from_originals():
    for request in requests_from(PREPARED, 5):
        assert request.given.keys() == {"input_ids", "lengths"}
        assert request.originals.keys() == {"text"}


def test_a_range_of_an_unknown_input_is_refused():
    with pytest.raises(RuntimeFault) as raised:
        generator_of(FREE, {"ids": (0, 1)})
    assert str(raised.value) == (
        "range of 'ids': found no such input, expected: input_ids, lengths"
    )
