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


def sides(multiple):
    own = {"base": 224, "multiple": multiple, "smallest": multiple, "largest": 1024}
    return axis("h", **own), axis("w", **own)


WAV2VEC2 = [(10, 5, 0), *[(3, 2, 0)] * 4, *[(2, 2, 0)] * 2]


@pytest.mark.parametrize(
    ("function", "axes", "relation"),
    [
        (
            lambda size: convolved(size, WAV2VEC2),
            (axis(smallest=400, base=16000, largest=200000),),
            "(x - 80) // 320",
        ),
        (lambda size: max((size + 3) // 8, 1), (axis(),), "max((x + 3) // 8, 1)"),
        (lambda size: 7, (axis(),), "7"),
        (lambda past, new: past + new + 3, (axis("past"), axis("new")), "past + new + 3"),
    ],
    ids=["convolutions", "never below one", "fixed", "a sum of two axes"],
)
def test_the_simplest_relation_is_found(function, axes, relation):
    assert str(fitted(function, *axes)) == relation


@pytest.mark.parametrize(
    ("function", "axes", "size"),
    [
        (lambda h, w: h // 16 * (w // 16) + 1, sides(16), 4 * 30 + 1),
        (lambda h, w: sum(h // s * (w // s) for s in (8, 16, 32)), sides(32), 21 * 2 * 15),
    ],
    ids=["patches and a class token", "anchors of three strides"],
)
def test_products_of_two_axes(function, axes, size):
    found = fitted(function, *axes)
    assert isinstance(found, Relation)
    assert found.size({"h": 64, "w": 480}) == size


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
