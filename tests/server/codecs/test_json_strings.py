"""Arrays of strings in JSON, read and written without orjson and `re`: the same bytes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from server.support.compiled import as_python, unless_compiled

from reference_server.codecs import json_data, json_strings, rapid_json
from reference_server.core import byte_strings
from reference_server.core.dtypes import DataType
from reference_server.core.errors import ServerError

PYTHON = as_python(json_strings)
FORMS = [
    pytest.param(json_strings, id="compiled", marks=unless_compiled(json_strings)),
    pytest.param(PYTHON, id="python"),
]
ELEMENTS = st.lists(
    st.one_of(
        st.binary(max_size=12),
        st.text(max_size=8).map(lambda text: text.encode("utf-8", "replace")),
        st.text(' "\\/\b\t\n\f\r\0\x1f\x7fa', max_size=8).map(str.encode),
    ),
    min_size=1,
    max_size=8,
)
DOCUMENTS = st.one_of(
    st.text('[]",a\\ \n1\0', max_size=14).map(str.encode),
    ELEMENTS.map(lambda elements: b"[" + b", ".join(b'"%b"' % each for each in elements) + b"]"),
)


def wire_of(elements):
    return byte_strings.serialize(np.array([*elements, None], object)[:-1])


def first_end(text):
    """Where the shortest array ends that `text` begins with."""
    for end in range(1, len(text) + 1):
        try:
            if type(rapid_json.loads(text[:end])) is list:
                return end
        except ServerError:
            continue
    return 0


@pytest.mark.skipif(not json_strings.IS_COMPILED, reason="json_strings is not compiled")
@given(DOCUMENTS, ELEMENTS, st.integers(0, 9))
def test_both_forms_do_the_same(text, elements, count):
    for number in (count, len(elements)):
        assert json_strings.strings(text, len(text), number) == PYTHON.strings(
            text, len(text), number
        )
        wire = wire_of(elements)
        for part in (wire, wire[:-1], wire + b"\1\0\0\0"):
            assert json_strings.quoted(part, number) == PYTHON.quoted(part, number)
    assert json_strings.array_end(text, len(text), 0) == PYTHON.array_end(text, len(text), 0)


@pytest.mark.parametrize("form", FORMS)
@given(text=DOCUMENTS)
def test_what_is_read_is_what_the_exact_reader_reads(form, text):
    for count in range(1, 9):
        found = form.strings(text, len(text), count)
        if found is not None:
            read = json_data.read(rapid_json.loads(text), DataType.BYTES, (count,))
            assert found == read.tolist()


@pytest.mark.parametrize("form", FORMS)
@given(text=DOCUMENTS, behind=st.sampled_from([b"", b',"b":1}', b"]", b'"']))
def test_an_array_ends_where_its_json_does(form, text, behind):
    if text.startswith(b"[") and first_end(text) == len(text):
        end = form.array_end(text + behind, len(text + behind), 0)
        assert end in (0, len(text))
        if b"\\" not in text and b"1" not in text:
            assert end == len(text)


@pytest.mark.parametrize("form", FORMS)
@given(elements=ELEMENTS)
def test_strings_are_written_as_by_rapidjson(form, elements):
    wire = wire_of(elements)
    written = form.quoted(memoryview(wire), len(elements))
    if written is not None:  # there were not very many escapes
        assert written == json_data.encode(np.array([*elements, None], object)[:-1])[1:-1]
    assert form.quoted(wire, len(elements) + 1) is None
    assert form.quoted(wire[:-1], len(elements)) is None


@pytest.mark.parametrize("form", FORMS)
def test_each_byte_is_escaped_as_rapidjson_does(form):
    for byte in range(256):
        element = bytes([byte]) + b"plain" * 2
        written = form.quoted(wire_of([element]), 1)
        assert written == json_data.encode_string(element)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "text",
    [
        *(b'["a","b"]', b' [ "a" ,\n"b" ]', b'[["a"],["b"]]', b'[["a","b"]]', b'["a",["b"]]'),
        b'[[[[[[[["a","b"]]]]]]]]',
    ],
)
def test_arrays_are_read_depth_first(form, text):
    assert form.strings(text, len(text), 2) == [b"a", b"b"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"[]", b'["a"]', b'["a","b","c"]', b'["a","b"', b'"a","b"]', b'["a","b"] '),
        *(b'["a","b",]', b'["a" "b"]', b'["a",1]', b'["a","b"]]', b'["a","\\n"]', b'["a","\n"]'),
        *(b'["a","b', b'["a",b"]', b'[[[[[[[[["a","b"]]]]]]]]]'),
    ],
)
def test_anything_else_is_left_to_others(form, text):
    assert form.strings(text, len(text), 2) is None
