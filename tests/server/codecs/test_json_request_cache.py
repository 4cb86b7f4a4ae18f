"""The cache of JSON requests: a request from the cache equals one that is parsed as a whole."""

import json
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from server.support.regions import MadeUpRegions
from server.support.requests import NullSink, signature

from reference_server.codecs import IS_COMPILED, infer_json
from reference_server.codecs.bodies import InputLimit
from reference_server.codecs.infer_json import InferRequestDecoder
from reference_server.core.errors import ServerError
from reference_server.core.tensor import DataType

MODEL = signature({"X": (DataType.FP32, [-1])}, name="m")
REGIONS = MadeUpRegions(region=bytes(64))
NEEDS_COMPILED = pytest.mark.skipif(not IS_COMPILED, reason="compiled modules are not installed")


def outcome(decode, body):
    """Return the request or the error, in a form that can be compared."""
    try:
        request, form = decode(MODEL, memoryview(body), len(body), NullSink(), REGIONS)
    except ServerError as error:
        return error.code, error.message
    inputs = [
        (each.name, each.datatype, each.shape, bytes(each.raw()))
        for each in request.inputs.values()
    ]
    said = (request.id, dict(request.parameters), request.requested_outputs, request.priority)
    return inputs, said, form


NUMBERS = st.sampled_from(
    ["1", "-1", "0", "-0.0", "2.5", "1e3", "1e300", "255", "256", "-129", "3e9", "1e400", "NaN",
     "true", "18446744073709551615", "18446744073709551616", "null", '"s"', '"]"', "[1]", "{}"]
)  # fmt: skip
ARRAYS = st.one_of(
    st.lists(NUMBERS, min_size=2, max_size=2).map(lambda items: f"[{','.join(items)}]"),
    st.sampled_from(
        ["[1,2]", "[3.5, 4]", "[[1],[2]]", "[[[1,2]]]", "[1,[2]]", "[]", "[1]", "[1,]"]
    ),
    st.sampled_from(
        ['["a","b"]', '["", "]"]', '[["é"],["b"]]', '["a"]', '["a",1]', '["a","b",]', '["a\0","b"]']
    ),
    st.sampled_from(['["\\"","b"]', '["\\u0041","b"]', '["\\"id\\":\\"","b"]', '["data","id"]']),
    st.sampled_from(["[1,2]]", "1", '"[1,2]"', "[" * 9 + "1,2" + "]" * 9, "[\n1,\t2 ]", "[1 2]"]),
)
TYPES = st.sampled_from(["FP32", "INT8", "UINT64", "BOOL", "BYTES", "FP16", "none"])
IDS = st.sampled_from(["a", "b", "", "marked", "é", '\\"', "\\u0061", "\x7f"])


@st.composite
def texts(draw):
    """Draw a request, with keys and brackets also in misleading places."""
    said = []
    if draw(st.booleans()):
        said.append(f'"id":{draw(st.sampled_from(["", " "]))}"{draw(IDS)}"')
    odd = [None] * 6 + ['"parameters":{"id":"a"}', '"data":[1,2]', '"id":"b"', '"i\\u0064":"b"']
    said.append(draw(st.sampled_from([*odd, '"other":"\\"data\\":[1,2]"'])))
    shape = draw(st.sampled_from(["[2]", "[2]", "[2]", "[1,2]", "[0]", "[]", "[-1]"]))
    colon = draw(st.sampled_from([":", ": ", " :"]))
    inputs = [
        f'{{"name":"{name}","data"{colon}{draw(ARRAYS)},"shape":{shape},"datatype":"{draw(TYPES)}"}}'
        for name in draw(st.sampled_from(["X", "X", "XY", "XX"]))
    ]
    said.append(f'"inputs":[{",".join(inputs)}]')
    if draw(st.booleans()):
        said.reverse()
    return f"{{{','.join(filter(None, said))}}}".encode()


@pytest.mark.brute_force
@settings(max_examples=100)
@given(st.lists(texts(), min_size=2, max_size=8))
def test_the_cache_changes_no_request(bodies):
    decoder = InferRequestDecoder()
    for body in [*bodies, *bodies]:
        assert outcome(decoder.decode, body) == outcome(decoder.decode_uncached, body)


@pytest.mark.parametrize("name", [b"\xff", b"a\xc3", b"\xed\xa0\x80", "é".encode(), b"\\ud800"])
def test_unusual_ids_are_read_without_the_cache(name):
    decoder = InferRequestDecoder()
    body = text().replace(b'"7"', b'"%b"' % name)
    for _ in range(2):
        assert outcome(decoder.decode, body) == outcome(decoder.decode_uncached, body)


def text(data=(1.0, 2.0), request_id="7", **fields):
    entry = {"name": "X", "datatype": "FP32", "shape": [2], "data": list(data)}
    return json.dumps({"id": request_id, "inputs": [entry], **fields}).encode()


@NEEDS_COMPILED
def test_a_skeleton_is_parsed_once(monkeypatch):
    decoder = InferRequestDecoder()
    outcome(decoder.decode, text())
    monkeypatch.setattr(infer_json, "RequestReader", None)
    request, _ = decoder.decode(
        MODEL, memoryview(found := text((3, 4), "8")), len(found), NullSink(), REGIONS
    )
    assert request.id == "8"
    assert bytes(request.inputs["X"].raw()) == struct.pack("<2f", 3, 4)


def test_too_many_bytes_of_strings_for_the_limit_are_refused_each_time():
    decoder = InferRequestDecoder(limit=InputLimit(120))
    for each in (("a", "b"), ("c", "d"), ("e" * 60, "")):
        asked = text(each).replace(b"FP32", b"BYTES")
        assert outcome(decoder.decode, asked) == outcome(decoder.decode_uncached, asked)


@NEEDS_COMPILED
def test_requests_of_one_skeleton_have_one_pattern():
    decoder = InferRequestDecoder()
    found = [
        decoder.decode(MODEL, memoryview(each), len(each), NullSink(), REGIONS)[0].pattern
        for each in (text(), text((3, 4)), text((5, 6), "8"))
    ]
    assert found[0] is None
    assert found[1] is found[2] is not None
