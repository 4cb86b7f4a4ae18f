"""JSON that is taken apart: what is taken out, and what is left."""

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from server.support.compiled import as_python, unless_compiled

from reference_server.codecs import json_skeleton, json_strings

PYTHON = as_python(json_skeleton)
FORMS = [
    pytest.param(json_skeleton.skeleton, id="compiled", marks=unless_compiled(json_skeleton)),
    pytest.param(PYTHON.skeleton, id="python"),
]
PARTS = st.sampled_from(
    [
        *(b'"data":', b'"id":', b'"name":', b'"a"', b'["a","b"]', b"[1,2]", b"[[]]"),
        *(b'"', b"[", b"]", b"{", b"}", b",", b":", b" ", b"1", b"-2.5", b"a"),
        *(b"\\", b"\n", b"\t", b"\0", b"\x7f", "ä".encode()),
    ]
)
DOCUMENTS = st.lists(PARTS, max_size=24).map(b"".join)


def apart(form, json):
    taken = form(json)
    return taken.text, taken.request_id, taken.arrays


@unless_compiled(json_skeleton)
@given(DOCUMENTS)
def test_both_forms_do_the_same(json):
    assert apart(json_skeleton.skeleton, json) == apart(PYTHON.skeleton, json)


@pytest.mark.parametrize("form", FORMS)
@given(DOCUMENTS)
def test_what_is_taken_out_fills_the_gaps(form, json):
    text, request_id, arrays = apart(form, json)
    taken = [*arrays, *([] if request_id is None else [request_id])]
    around = text.split(b"\0")
    if b"\0" not in json:
        assert len(around) == len(taken) + 1
        assert (
            json
            in {
                b"".join(part for pair in zip(around, [*order, b""], strict=True) for part in pair)
                for order in permutations(taken)
            }
            or len(taken) > 5
        )
    assert all(each[:1] + each[-1:] == b"[]" for each in arrays)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("json", "text", "request_id", "arrays"),
    [
        (b'{"data":[1, 2],"x":3}', b'{"data":\0,"x":3}', None, [b"[1, 2]"]),
        (b'{"data": [[1],[2]]}', b'{"data": \0}', None, [b"[[1],[2]]"]),
        (
            b'[{"data":[1] } , {"data":[2]}\n]',
            b'[{"data":\0 } , {"data":\0}\n]',
            None,
            [b"[1]", b"[2]"],
        ),
        (b'{"data":[1],2}', b'{"data":[1],2}', None, []),
        (b'{"data":[1],"data":[2]}', b'{"data":\0,"data":\0}', None, [b"[1]", b"[2]"]),
        (b'{"id":"7","data":[1]}', b'{"id":"\0","data":\0}', b"7", [b"[1]"]),
        (b'{"data":[1],"id": ""}', b'{"data":\0,"id": "\0"}', b"", [b"[1]"]),
        (b'{"id":"a\\n"}', b'{"id":"a\\n"}', None, []),
        (b'{"id":7,"data":1}', b'{"id":7,"data":1}', None, []),
        (b'{"data" :[1]}', b'{"data" :[1]}', None, []),
        (b'{"data":[1', b'{"data":[1', None, []),
        (b'{"data":', b'{"data":', None, []),
        (b'{"id":', b'{"id":', None, []),
        (b'{"id":"7', b'{"id":"7', None, []),
        (b"", b"", None, []),
    ],
)
def test_parts_are_taken_out(form, json, text, request_id, arrays):
    assert apart(form, json) == (text, request_id, arrays)


@pytest.mark.skipif(not json_strings.IS_COMPILED, reason="json_strings is not compiled")
@pytest.mark.parametrize("form", FORMS)
def test_strings_are_taken_out(form):
    assert apart(form, b'{"data":[ ["]"],["}"]],"id":"7"}') == (
        b'{"data":\0,"id":"\0"}',
        b"7",
        [b'[ ["]"],["}"]]'],
    )
    json = b'{"data":["a", "id":"7"]}'
    assert apart(form, json) == (json.replace(b"7", b"\0"), b"7", [])
