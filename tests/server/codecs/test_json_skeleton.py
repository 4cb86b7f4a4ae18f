"""The JSON of a request, split into a constant part and variable parts."""

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_server.codecs.json_skeleton import split_request

PARTS = st.sampled_from(
    [
        *(b'"data":', b'"id":', b'"name":', b'"a"', b'["a","b"]', b"[1,2]", b"[[]]"),
        *(b'"', b"[", b"]", b"{", b"}", b",", b":", b" ", b"1", b"-2.5", b"a"),
        *(b"\\", b"\n", b"\t", b"\0", b"\x7f", "ä".encode()),
    ]
)
DOCUMENTS = st.lists(PARTS, max_size=24).map(b"".join)


def split(json):
    parts = split_request(json)
    return parts.text, parts.request_id, parts.arrays


@given(DOCUMENTS)
def test_the_variable_parts_fit_the_gaps(json):
    text, request_id, arrays = split(json)
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
def test_id_and_arrays_are_variable_parts(json, text, request_id, arrays):
    assert split(json) == (text, request_id, arrays)


def test_arrays_of_strings_are_variable_parts():
    assert split(b'{"data":[ ["]"],["}"]],"id":"7"}') == (
        b'{"data":\0,"id":"\0"}',
        b"7",
        [b'[ ["]"],["}"]]'],
    )
    json = b'{"data":["a", "id":"7"]}'
    assert split(json) == (json.replace(b"7", b"\0"), b"7", [])
