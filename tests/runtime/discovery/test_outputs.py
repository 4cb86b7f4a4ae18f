"""Sizes of outputs are fitted from executions, or refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ge_runtime.discovery.outputs import Unfitted, fit
from ge_runtime.discovery.study import Axis
from ge_runtime.specs import Relation

LARGEST = 3000


def axis(name="x", *, smallest=1, multiple=1, base=64, largest=LARGEST):
    return Axis(name, (name,), base, smallest, multiple, largest)


def fitted(function, *axes) -> Relation | int:
    found = fit(axes, lambda sizes: function(*(sizes[own.name] for own in axes)))
    return found if isinstance(found, int) else Relation.parse(found)


LAYERS = st.lists(
    st.tuples(st.integers(1, 8), st.integers(1, 6), st.integers(0, 3)), min_size=1, max_size=5
)
"""Kernel, stride and padding of each convolution in a chain."""


def convolved(size, layers):
    for kernel, stride, padding in layers:
        size = (size + 2 * padding - kernel) // stride + 1
    return size


@given(LAYERS)
def test_a_chain_of_convolutions_is_one_floor_division(layers):
    smallest = next(size for size in range(1, 10**6) if convolved(size, layers) >= 1)
    own = axis(smallest=smallest, base=max(64, smallest), largest=smallest + 40000)
    found = fitted(lambda size: convolved(size, layers), own)
    if isinstance(found, int):
        assert {convolved(size, layers) for size in (smallest, own.base, own.largest)} == {found}
        return
    for size in (smallest, smallest + 1, smallest + 17, own.base + 5, own.largest - 3):
        assert found.size({"x": size}) == convolved(size, layers)


@given(st.integers(1, 6), st.integers(0, 20))
def test_a_linear_size(factor, offset):
    found = fitted(lambda size: factor * size + offset, axis())
    assert isinstance(found, Relation)
    assert found.size({"x": 999}) == factor * 999 + offset


def test_wav2vec2_needs_one_division():
    layers = [(10, 5, 0), *[(3, 2, 0)] * 4, *[(2, 2, 0)] * 2]
    own = axis(smallest=400, base=16000, largest=200000)
    assert str(fitted(lambda size: convolved(size, layers), own)) == "(x - 80) // 320"


def test_a_size_that_never_falls_below_one():
    assert str(fitted(lambda size: max((size + 3) // 8, 1), axis())) == "max((x + 3) // 8, 1)"


def test_a_fixed_size():
    assert fitted(lambda size: 7, axis()) == 7


def test_patches_of_two_axes_and_a_class_token():
    sides = (
        axis("height", base=224, multiple=16, smallest=16, largest=1024),
        axis("width", base=224, multiple=16, smallest=16, largest=1024),
    )
    found = fitted(lambda height, width: height // 16 * (width // 16) + 1, *sides)
    assert isinstance(found, Relation)
    assert found.size({"height": 64, "width": 480}) == 4 * 30 + 1


def test_the_sum_of_two_axes_is_plain():
    found = fitted(lambda past, new: past + new + 3, axis("past"), axis("new"))
    assert str(found) == "past + new + 3"


def test_anchors_of_three_strides():
    sides = (
        axis("height", base=224, multiple=32, smallest=32, largest=1024),
        axis("width", base=224, multiple=32, smallest=32, largest=1024),
    )
    found = fitted(lambda h, w: sum(h // s * (w // s) for s in (8, 16, 32)), *sides)
    assert isinstance(found, Relation)
    assert found.size({"height": 64, "width": 480}) == 21 * 2 * 15


@pytest.mark.parametrize(
    "function",
    [lambda size: size * size, lambda size: size % 7 + 1, lambda size: size.bit_length()],
    ids=["square", "remainder", "logarithm"],
)
def test_a_size_of_another_kind_is_refused(function):
    with pytest.raises(Unfitted):
        fitted(function, axis())


def test_a_failing_execution_is_refused():
    with pytest.raises(Unfitted, match="found no execution at x 64"):
        fit([axis()], lambda sizes: None)
