"""Arrays of strings in JSON, read to byte strings and written from the wire form."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_server.codecs import json_writer, rapid_json
from reference_server.codecs.json_arrays import find_array_end, read_strings, write_strings
from reference_server.codecs.json_tensor_reader import read_tensor
from reference_server.core import byte_strings
from reference_server.core.errors import ServerError
from reference_server.core.tensor import DataType

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
    """Return the end of the shortest array at the start of `text`, 0 without one."""
    for end in range(1, len(text) + 1):
        try:
            if type(rapid_json.loads(text[:end])) is list:
                return end
        except ServerError:
            continue
    return 0


@given(text=DOCUMENTS)
def test_strings_equal_those_of_the_general_reader(text):
    for count in range(1, 9):
        found = read_strings(text, len(text), count)
        if found is not None:
            read = read_tensor(rapid_json.loads(text), DataType.BYTES, (count,))
            assert found == read.tolist()


@given(text=DOCUMENTS, behind=st.sampled_from([b"", b',"b":1}', b"]", b'"']))
def test_the_end_of_an_array_is_found(text, behind):
    if text.startswith(b"[") and first_end(text) == len(text):
        end = find_array_end(text + behind, len(text + behind), 0)
        assert end in (0, len(text))
        if b"\\" not in text and b"1" not in text:
            assert end == len(text)


@given(elements=ELEMENTS)
def test_strings_are_written_like_rapidjson(elements):
    wire = wire_of(elements)
    written = write_strings(memoryview(wire), len(elements))
    if written is not None:  # None for very many escapes
        assert written == json_writer.write_array(np.array([*elements, None], object)[:-1])[1:-1]
    assert write_strings(wire, len(elements) + 1) is None
    assert write_strings(wire[:-1], len(elements)) is None


def test_each_byte_is_escaped_like_rapidjson():
    for byte in range(256):
        element = bytes([byte]) + b"plain" * 2
        written = write_strings(wire_of([element]), 1)
        assert written == json_writer.write_string(element)


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"[]", b'["a"]', b'["a","b","c"]', b'["a","b"', b'"a","b"]', b'["a","b"] '),
        *(b'["a","b",]', b'["a" "b"]', b'["a",1]', b'["a","b"]]', b'["a","\\n"]', b'["a","\n"]'),
        *(b'["a","b', b'["a",b"]', b'[[[[[[[[["a","b"]]]]]]]]]'),
    ],
)
def test_unusual_arrays_are_refused(text):
    assert read_strings(text, len(text), 2) is None
