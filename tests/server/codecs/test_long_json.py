"""A document read in pieces: the same value as in one go, or none."""

import gc
import json
import math

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from reference_server.codecs import long_json, rapid_json, rapid_json_reader
from reference_server.codecs.json_data import read
from reference_server.codecs.long_json import loads
from reference_server.codecs.rapid_json import LONG
from reference_server.core import turns
from reference_server.core.dtypes import DataType
from reference_server.core.errors import ServerError

TEXTS = st.text(alphabet='ab,:"\\[]{}\n é😀') | st.text()
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | TEXTS,
    lambda children: st.lists(children) | st.dictionaries(TEXTS, children),
    max_leaves=12,
)
CONTAINERS = st.lists(VALUES) | st.dictionaries(TEXTS, VALUES)


def in_pieces(document, piece, deepest=100):
    """The value read in pieces of so many bytes, or None if that is refused."""
    try:
        return loads(memoryview(document), deepest, piece)
    except ValueError:
        return None


def check(document, piece):
    """What orjson reads is read, all that is read is right, and nothing else is."""
    found = in_pieces(document, piece)
    if found is not None:
        assert repr(found) == repr(rapid_json_reader.read(document))
        return
    try:
        value = rapid_json._read_ordinary(document)
    except ValueError:
        return
    # An empty name stands for those of the objects that a piece begins in.
    assert b'""' in document or not isinstance(value, (list, dict))


@pytest.fixture(autouse=True, scope="module")
def no_waiting():
    """Nobody else is here whom a piece would give way to."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(turns, "_TURN_S", 0)
        yield


@settings(max_examples=60)
@given(CONTAINERS, st.integers(1, 50), st.sampled_from([None, (", ", " : "), (" ,\n", ":\t")]))
def test_what_is_written_is_read(value, piece, separators):
    document = json.dumps(value, ensure_ascii=piece % 2 == 0, separators=separators).encode(
        "utf-8", "surrogatepass"
    )
    check(document, piece)


EDGES = (
    *(b"[1,2,]", b"[,1]", b"[[,1]]", b"[1,,2]", b'{"a":1,}', b'{"a":[,1]}', b"[1,2", b"[1]],2"),
    *(b"1,2", b"[1],2", b"[1],[2]", b'{"a":1,"a":2}', b'{"":[1,2],"":3}', b'{"":[1,2],"b":[3,4]}'),
    *(b'[{"a":1,"b":2},{"a":[1,2],"a":3}]', b"[1}", b"[1,2}", b'{"a":1,2}', b'[1,"a":2]'),
    *(b'["a\\",b",1]', b'["\\\\",1]', b'["\\\\\\",",2]', b'["[",1,"]"]', b"[1, ]", b"[1 ,2]"),
    *(b"[1,\\,2]", b"[\\", b"[1,2]]", b"{,}", b'{"a",1}', b"[NaN,1]", b'"a,b"', b"", b" , "),
    *(
        b" [1,2] ",
        b"[1,2]3",
        b"[[],[]]",
        b'[1,2,{"a":[]}]',
        b"[1,[}]",
        b'{"a":{"b":[1,{"c":[2,3]}]}}',
    ),
)


@pytest.mark.parametrize("document", EDGES)
def test_edges(document):
    for piece in range(1, len(document) + 2):
        check(document, piece)


DAMAGES = st.lists(st.tuples(st.integers(0, 99), st.sampled_from(b',:"[]{}1')), max_size=3)


@given(CONTAINERS, st.integers(1, 30), DAMAGES)
@example([[1, 2], [3]], 3, [(4, ord("}"))])
@settings(max_examples=100)
def test_what_is_damaged_is_refused_or_read_alike(value, piece, damages):
    document = bytearray(orjson.dumps(value)) if _fits(value) else bytearray(b"[1,2]")
    for place, byte in damages:
        at = place % (len(document) + 1)
        document[at : at + 1] = bytes([byte])
    check(bytes(document), piece)


def _fits(value):
    try:
        orjson.dumps(value)
    except TypeError:  # an integer beyond 64 bits, or a lone surrogate
        return False
    return True


@pytest.mark.parametrize(("depth", "is_read"), [(5, True), (6, False)])
def test_depth_is_counted_over_pieces(depth, is_read):
    document = b"[1," * depth + b"2" + b"]" * depth
    for piece in (1, 2, 7, 100):
        assert (in_pieces(document, piece, deepest=5) is not None) is is_read


LONG_DOCUMENTS = {
    "numbers": json.dumps({"data": list(range(60_000))}),
    "rows": json.dumps({"data": [[number, 0.5] for number in range(30_000)], "id": "x"}),
    "strings": json.dumps(['a\\",:[' * 3] * 20_000),
    "one string": json.dumps(["x" * (LONG + 1), ","]),
    "objects": json.dumps([{"a": number, "b": [{}]} for number in range(20_000)]),
    "no array": json.dumps("x," * LONG),
    "a NaN": "[" + "1.5," * LONG + "NaN]",
    "equal names": '{"a":[' + "1.5," * LONG + '1],"a":null}',
}


@pytest.mark.parametrize("text", LONG_DOCUMENTS.values(), ids=LONG_DOCUMENTS)
def test_long_documents_are_read_as_others(text):
    value = json.loads(text)
    if type(value) is dict and "a" in value:
        value["a"] = value["a"] or [1.5] * LONG + [1]  # of equal names the first counts
    assert len(text) > LONG
    assert repr(rapid_json.loads(memoryview(text.encode()))) == repr(value)


def test_a_long_document_is_refused_as_others():
    with pytest.raises(ServerError, match="Missing a comma or '\\]' after an array element"):
        rapid_json.loads(b"[" + b"1.5," * LONG + b"1 2]")


# ------------------------------------------------------------------------- millions of elements


LISTS = st.lists(st.lists(st.integers(), max_size=9), max_size=30)


@pytest.fixture
def small_turns(monkeypatch):
    monkeypatch.setattr(turns, "ELEMENTS", 4)


@pytest.mark.parametrize("size", [0, 3, 4, 5, 8, 41])
def test_parts_follow_each_other(small_turns, size):
    items = list(range(size))
    parts = list(turns.slices(items))
    assert [one for part in parts for one in part] == items
    assert max(map(len, parts)) <= 4


@pytest.mark.parametrize("size", [0, 3, 4, 5, 41])
def test_names_are_sorted_however_many(small_turns, size):
    names = {str(number): number for number in range(size)}
    assert list(turns.ordered(names)) == sorted(names)


def test_each_of_very_many_comes_once():
    items = list(range(5_000))
    assert list(turns.spread(items)) == items
    assert turns.spread(items[:5]) == items[:5]


def test_lists_are_joined(small_turns):
    @given(LISTS)
    def joined(lists):
        assert turns.joined([*lists]) == [one for some in lists for one in some]

    joined()


def test_what_is_let_go_is_empty_where_it_was_long(small_turns):
    rows, numbers, short = [[1], [2, 3]] * 9, list(range(99)), [1, 2]
    turns.let_go({"a": rows, "b": {"c": numbers}, "d": short, "e": "text", "f": None})
    assert (rows, len(numbers) <= 4, short) == ([], True, [1, 2])


@pytest.mark.parametrize(
    ("data", "datatype", "refusal"),
    [
        ([1, 2, 3, 4, 5, 300, 7], DataType.INT8, "value 300 is out of range"),
        ([300, 2, 3, 4, 5, 2**63], DataType.INT8, "non-signed-integer"),
        ([300, 2, 3, 4, 5, True], DataType.INT8, "non-signed-integer"),
        ([1, 2, 3, 4, 5, 6, "7"], DataType.FP32, "non-number as double"),
    ],
)
def test_the_fault_that_is_told_does_not_depend_on_the_parts(small_turns, data, datatype, refusal):
    with pytest.raises(ServerError, match=refusal):
        read(data, datatype, (len(data),))


def test_the_collector_waits_for_the_last_who_makes_many_objects(monkeypatch):
    now_s = [0.0]
    monkeypatch.setattr(turns.time, "monotonic", lambda: now_s[0])
    assert gc.isenabled()
    first, second = turns.uncollected(), turns.uncollected()
    for some in (first, second):
        some.__enter__()
    assert not gc.isenabled()
    first.__exit__(None, None, None)
    assert not gc.isenabled()
    with turns.uncollected():
        now_s[0] = 11.0
    assert gc.isenabled()  # it has waited for long
    second.__exit__(None, None, None)
    assert gc.isenabled()


def test_what_is_not_strict_is_read_piece_by_piece():
    pieces = []

    def unusual(piece):
        pieces.append(piece)
        return rapid_json._read_unusual(piece)

    document = b"[" + b"1,NaN,2.5," * 40_000 + b"-Infinity]"
    value = loads(memoryview(document), 100, unusual=unusual)
    assert repr(value) == repr([1, math.nan, 2.5] * 40_000 + [-math.inf])
    assert len(pieces) > 5


@pytest.mark.parametrize("where", ["[%b1,2]", "[1%b,2]", "[1,2%b]", "[1,2]%b", "%b[1,2]"])
def test_white_space_without_end_is_not_gathered(where, monkeypatch):
    longest = []
    take = long_json._Reader.take
    monkeypatch.setattr(
        long_json._Reader,
        "take",
        lambda self, text, **more: (longest.append(len(text)), take(self, text, **more))[1],
    )
    document = where.encode() % (b" \n" * 500_000)
    assert loads(memoryview(document), 100) == [1, 2]
    assert max(longest) < 3 * long_json.PIECE


@pytest.mark.parametrize("space", [b" " * 300_000, b" " * 131_073, b"\n" * 65_536 * 4])
@pytest.mark.parametrize("document", [b"", b"[1,]", b'["' + b"x" * 200_000 + b"]", b"\xef\xbb[]"])
def test_offsets_count_the_white_space_before_a_document(space, document):
    with pytest.raises(ServerError) as found:
        rapid_json.loads(space + document)
    with pytest.raises(ServerError) as expected:
        rapid_json_reader.read(space + document)
    assert found.value.message == expected.value.message


def test_long_documents_with_equal_names_are_read_as_short_ones():
    document = b'{"a":"%b","b":[%b],"a":2}' % (b"x" * 200_000, b"1," * 100_000 + b"1")
    value = rapid_json.loads(document)
    assert value == {"a": "x" * 200_000, "b": [1] * 100_001}


def test_a_document_that_only_opens_brackets_is_refused_at_its_first_piece():
    for opening in (b"[", b'{"a":', b" [ "):
        with pytest.raises(ValueError, match="nested too deeply"):
            next(long_json._pieces(memoryview(opening * 1_000_000), 2_000, 100))
