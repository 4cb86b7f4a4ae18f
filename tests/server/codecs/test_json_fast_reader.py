"""The fast JSON reader: it returns what the exact reader returns, or gives up."""

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from reference_server.codecs import json_exact_reader, json_fast_reader
from reference_server.codecs.json_exact_reader import DEEPEST
from reference_server.codecs.json_fast_reader import Unusual
from reference_server.codecs.rapid_json import LONG
from reference_server.core import gil
from reference_server.core.errors import ServerError

TEXTS = st.text(alphabet='ab,:"\\[]{}\n é😀') | st.text()
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | TEXTS,
    lambda children: st.lists(children) | st.dictionaries(TEXTS, children),
    max_leaves=12,
)
#: Pieces of JSON, so that random sequences of them are nearly documents.
TOKENS = st.sampled_from(
    [
        *(b"[", b"]", b"{", b"}", b",", b":", b" ", b"\n", b"1", b"-", b"0", b"1.5", b"e3", b"-2"),
        *(b'"a"', b'"b"', b'"', b"\\", b"\\u00e9", b"\\ud83d\\ude00", b"\\udc80", b'"\\n"', b"\0"),
        *(b"0.3", b"-0.0", b"7.", b".5", b"123456789.1234567", b"00"),
        *(b"[1]", b"[1,2],", b"],[", b"]]", b"[["),
        *(b"NaN", b"Infinity", b"Inf", b"true", b"false", b"null", b"\xff", b"\xc3\xa9", b"9" * 20),
    ]
)
DOCUMENTS = st.one_of(
    st.lists(TOKENS, max_size=12).map(b"".join),
    st.lists(TOKENS, max_size=8).map(lambda tokens: b"[%b]" % b",".join(tokens)),
    st.binary(max_size=12),
    VALUES.map(lambda value: json.dumps(value).encode()),
    VALUES.map(lambda value: json.dumps(value, ensure_ascii=False).encode(errors="surrogatepass")),
)


@pytest.fixture(autouse=True, scope="module")
def no_pauses():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gil, "yield_gil", lambda: None)
        yield


def places(repeated):
    """The owners, the names and the places of repeated members, in a fixed order."""
    return sorted((repr(owner), name, at) for (_, name), (owner, at) in repeated.items())


def fast(document):
    """The repr of the value and the repeated names, or None where the reader gives up.

    The repr differs for 1 and 1.0, and for 0.0 and -0.0; NaN equals NaN.
    """
    repeated = {}
    try:
        return repr((json_fast_reader.read(document, DEEPEST, repeated), places(repeated)))
    except Unusual:
        return None


def exact(document):
    """The repr of the value and the repeated names, or None where the document is refused."""
    repeated = {}
    try:
        return repr((json_exact_reader.read(document, repeated), places(repeated)))
    except ServerError:
        return None


@pytest.mark.brute_force
@settings(max_examples=100)
@given(DOCUMENTS)
@example(b'{"a":1,"\\u0061":[1,NaN]}')
@example(b"[01]")
@example(b"[-]")
@example(b"[1,]")
@example(b"[1 2]")
@example(b"[1,-Infinity,Inf]")
@example(b'["\\"]')
@example(b"-0")
@example(b"[-0.0,0.1,-2.50,100.000,01.5,1.]")
@example(b"[-0.0,0.1,-2.50,100.000]")
@example(b"[0.123456789012345,0.1234567890123456,123456789012345.5,9007199254740993.0]")
@example(b"[1e400]")
@example(b'["\\n","a","]","\\"]"]')
@example(b'["\\n",{"a":1,"a":2},"b"]')
@example(b'["\\n",[["b"]],"\\udc80"]')
@example(b'["\\n","\xff","b" ]')
@example(b"[[1,2],[3]]")
@example(b"[[1,2],[3,[4]]]")
@example(b"[[1,2],[3,{}]]")
@example(b"[[1,2],[3],4,[5]]")
@example(b"[[1,NaN],[3]]")
@example(b"[[1],[2],]")
@example(b"[[[1],[2]],[[3]]]")
@example(b"[ [ [1],[2] ] , [ [3] ] ]")
def test_the_fast_reader_gives_up_or_agrees_with_the_exact_reader(document):
    found = fast(document)
    assert found is None or found == exact(document)


@given(VALUES, st.sampled_from([None, (", ", " : "), (" ,\n", ":\t")]))
def test_ordinary_documents_are_read_fast(value, separators):
    document = json.dumps([value], separators=separators).encode()
    has_lone_surrogates = "\\ud" in document.decode()
    assert has_lone_surrogates or fast(document) == exact(document) is not None


LONG_DOCUMENTS = {
    "numbers": json.dumps({"data": list(range(25_000))}),
    "rows": json.dumps({"data": [[number, 0.5] for number in range(12_000)], "id": "x"}),
    "escapes": json.dumps(["é\n", "x"] * 10_000),
    "images": json.dumps([[[0, 1], [2, 3]], [[4.5], []]] * 5_000),
    "spaced images": json.dumps([[[0, 1], [2, 3]], [[4.5], []]] * 2_500, indent=1),
    "strings": json.dumps(['a\\",:[' * 3] * 7_000),
    "numbers and strings": json.dumps([1, "]"] * 18_000),
    "one string": json.dumps(["x" * (LONG + 1), ","]),
    "objects": json.dumps([{"a": number, "b": [{}]} for number in range(7_000)]),
    "spaces": "[" + " " * LONG + "1," + " " * LONG + "2" + "\n" * LONG + "]" + "\t" * LONG,
    "NaN": "[" + "1.5,NaN," * (LONG // 4) + "NaN]",
    "repeated names": '{"a":[' + "1.5," * (LONG // 2) + '1],"a":null}',
}


@pytest.mark.brute_force
@pytest.mark.parametrize("text", LONG_DOCUMENTS.values(), ids=LONG_DOCUMENTS)
def test_long_documents_are_read_fast(text):
    value = json.loads(text, object_pairs_hook=lambda members: dict(reversed(members)))
    assert len(text) > LONG
    found = json_fast_reader.read(text.encode(), DEEPEST)
    # As text, where NaN equals NaN and 1 differs from 1.0.
    assert json.dumps(found, sort_keys=True) == json.dumps(value, sort_keys=True)


@pytest.mark.brute_force
def test_a_long_document_pauses_between_pieces(monkeypatch):
    pauses = []
    monkeypatch.setattr(gil, "yield_gil", lambda: pauses.append(None))
    for text in LONG_DOCUMENTS.values():
        pauses.clear()
        json_fast_reader.read(text.encode(), DEEPEST)
        pieces = len(text) // json_fast_reader.PIECE
        assert len(pauses) >= pieces // 2 or '"xxx' in text
    pauses.clear()
    json_fast_reader.read(b"[1,2]", DEEPEST)
    assert not pauses


def test_depth_is_limited():
    for depth in range(1, 5):
        document = b"[" * depth + b'{"a":1}' + b"]" * depth
        if depth < 4:
            assert json_fast_reader.read(document, 4)
        else:
            with pytest.raises(Unusual):
                json_fast_reader.read(document, 4)
