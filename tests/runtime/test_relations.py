import itertools
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ge_runtime.specs import Relation

SIZES = {"height": 7, "width": 5, "max": 4}


@pytest.mark.parametrize(
    ("text", "normal", "size"),
    [
        ("height", "height", 7),
        ("width*2", "width * 2", 10),
        (" ( height+1 ) // 2 ", "(height + 1) // 2", 4),
        ("(height - 3) // 2 + 1", "(height - 3) // 2 + 1", 3),
        ("height * width + (4 - 1)", "height * width + (4 - 1)", 38),
        ("2 * (height + width)", "2 * (height + width)", 24),
        ("height - 9", "height - 9", -2),
        ("(width - 9) * 2", "(width - 9) * 2", -8),
        ("(height\n + 1)", "height + 1", 8),
        ("max(height-9,1)", "max(height - 9, 1)", 1),
        ("min(height, width, 9) * 2", "min(height, width, 9) * 2", 10),
        (
            "max((min(height, 3) + 1) // 2, width // 2)",
            "max((min(height, 3) + 1) // 2, width // 2)",
            2,
        ),
        ("max + min(max, 2)", "max + min(max, 2)", 6),
    ],
)
def test_value_follows_from_the_sizes_of_axes(text, normal, size):
    relation = Relation.parse(text)
    assert relation.size(SIZES) == size
    assert str(relation) == normal


def test_axes_are_named_once_in_order():
    assert Relation.parse("width * (height + width)").axes == ("width", "height")


REFUSED = {
    "axes and whole numbers with": [
        *("", "height,width", "height width", "height / 2", "height ** 2", "height % 2"),
        *("-height", "height + -1", "height + 1.5", "height + 0x10", "1if height", "max(height)"),
        *("max(height, default=1)", "max(*height, width)", "abs(height, width)", "True + height"),
        *("hohe + 1é", "(" * 101 + "height" + ")" * 101),
    ],
    "no axis to be subtracted": ["max(height, 2, 9 - width)", "height - width", "9 - (4 + height)"],
    "an expression with an axis": ["7", "2 * (3 + 4)"],
    "divisors that are fixed and at least 1": ["9 // height", "height // 0", "height // (1 - 2)"],
    "no factor below 0": ["(2 - 3) * height", "height * (2 - 3)", "height * (height - 9)"],
}


@pytest.mark.parametrize(
    ("text", "expected"), [(text, expected) for expected in REFUSED for text in REFUSED[expected]]
)
def test_a_relation_that_may_decrease_is_refused(text, expected):
    with pytest.raises(ValueError, match=expected):
        Relation.parse(text)


@pytest.mark.parametrize("text", ["1if height", "0xfor x in height", "1or height"])
def test_refused_texts_cause_no_warning_of_python(text):
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with pytest.raises(ValueError, match="axes and whole numbers"):
            Relation.parse(text)
    assert warned == []


operators = st.sampled_from(["+", "-", "*", "//"])
expressions = st.recursive(
    st.sampled_from(["a", "b"]) | st.integers(0, 12).map(str),
    lambda inner: st.builds("({} {} {})".format, inner, operators, inner),
    max_leaves=6,
)


@pytest.mark.brute_force
@given(expressions)
def test_an_accepted_relation_never_decreases(text):
    try:
        relation = Relation.parse(text)
    except ValueError:
        return
    for a, b in itertools.product(range(1, 7), repeat=2):
        size = relation.size({"a": a, "b": b})
        assert size == eval(text, {"a": a, "b": b})
        assert relation.size({"a": a + 1, "b": b}) >= size
        assert relation.size({"a": a, "b": b + 1}) >= size
