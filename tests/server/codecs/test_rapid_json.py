"""Documents are read as RapidJSON reads them, and refused with its texts."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference_server.codecs import json_exact_reader, rapid_json
from reference_server.codecs.rapid_json import loads
from reference_server.core.errors import Code, ServerError

GOLDEN = Path(__file__).parents[2] / "golden" / "rapid_json_errors.json"
SYNTAX = "failed to parse the request JSON buffer: "


def outcome(read):
    """Return the repr of the value, which shows types and the sign of zero, or the error."""
    try:
        return repr(read())
    except ServerError as error:
        return error.code, error.message


def exactly(document):
    return outcome(lambda: json_exact_reader.read(document))


def fault(document):
    with pytest.raises(ServerError) as caught:
        loads(document)
    return caught.value


@pytest.mark.parametrize("read", [loads, lambda document: json_exact_reader.read(document)])
def test_documents_are_read_or_refused_like_by_the_real_server(read):
    cases = json.loads(GOLDEN.read_text())["cases"]
    assert len(cases) > 700
    for text, expected in cases:
        document = text.encode("latin-1")
        if expected is None:
            read(document)
        else:
            assert outcome(lambda document=document: read(document)) == (
                Code.INTERNAL,
                SYNTAX + expected,
            ), document


@settings(max_examples=150)
@given(st.binary(max_size=12))
def test_both_readers_agree_on_any_bytes(document):
    assert outcome(lambda: loads(document)) == exactly(document)


def test_infinities_and_nan_have_names():
    words = loads(b"[NaN,-NaN,Inf,-Inf,Infinity,-Infinity]")
    assert [math.isnan(word) for word in words[:2]] == [True, True]
    assert words[2:] == [math.inf, -math.inf, math.inf, -math.inf]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b"9223372036854775808", 2**63),
        (b"18446744073709551615", 2**64 - 1),
        (b"18446744073709551616", 2.0**64),
        (b"-9223372036854775808", -(2**63)),
        (b"-9223372036854775809", -(2.0**63)),
        (b"-0", 0),
        (b"-0.0", -0.0),
        (b"1e5", 100000.0),
        (b"1" + b"0" * 308, 1e308),
        (b"1.8e308", math.inf),
        (b"-1.8e308", -math.inf),
        (b"1e-400", 0.0),
        (b"Inf.5", 0.5),
    ],
)
@pytest.mark.parametrize("spoil", [b"", b",Inf"])
def test_numbers_beyond_64_bits_become_doubles(text, value, spoil):
    assert repr(loads(b"[" + text + spoil + b"]")[0]) == repr(value)


def test_numbers_are_rounded_correctly_unlike_by_the_real_server():
    assert loads(b"[0.14455526098472494]") == [float("0.14455526098472494")]
    assert loads(b"[0e400]") == loads(b"[0e400,Inf]")[:1] == [0.0]


@pytest.mark.parametrize("spoil", [b"", b",NaN", b",Inf"])
def test_invalid_utf8_is_kept(spoil):
    raw = b"\xff\x80 \xed\xa0\x80 \xc3\xa9"
    text = loads(b'["' + raw + b'"' + spoil + b"]")[0]
    assert text.encode("utf-8", "surrogateescape") == raw


def test_a_low_surrogate_alone_is_three_bytes():
    text = loads(b'["\\udc80"]')[0]
    assert text.encode("utf-8", "surrogateescape") == b"\xed\xb2\x80"


def test_a_nul_ends_the_document():
    assert loads(b"[1]\0[") == [1]
    assert loads(b'{"a":"\\u0000"}\0\xff') == {"a": "\0"}


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b"[NaN,"])
def test_deep_nesting_is_refused_without_recursion(opening):
    assert fault(opening * 100_000).code is Code.INVALID_ARG


def test_brackets_in_strings_and_siblings_do_not_nest():
    flat = [["]" * 200, "[" * 200, '\\"[']] * 200
    assert loads(json.dumps(flat).encode()) == flat
    assert loads(b'"' + b"[" * 200 + b'"') == "[" * 200


@pytest.mark.parametrize(
    ("document", "repeated"),
    [
        (b"{}", {}),
        (b"[1,2]", {}),
        (b'{"a":1,"b":{"a":2}}', {}),
        (b'{"a":"b:c","d":":"}', {}),
        (b'{"a":1,"a":2,"b":3}', {"a": 1}),
        (b'{"a":1,"b":2,"a":2,"c":3,"a":3}', {"a": 2}),
        (b'{"p":{"x":1,"x":2},"x":1}', {"x": 1}),
        (b'[{"x":1,"x":2}]', {"x": 1}),
        (b'{"\\u0061":1,"a":NaN}', {"a": 1}),
    ],
)
def test_repeated_names_and_their_places_are_found(document, repeated):
    found = {}
    rapid_json.loads(memoryview(document), repeated=found)
    assert {name: place for (_, name), (_, place) in found.items()} == repeated
