import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ge_runtime.batching.admission import Admission
from ge_runtime.batching.gears import Gears
from ge_runtime.config import ValueRange
from ge_runtime.errors import GearOverflow, RequestFault, ShapeMismatch
from ge_runtime.specs import UNKNOWN, DType, Relation, TensorSpec

IDS = TensorSpec("ids", DType.INT64, ("tokens",))
TYPES = TensorSpec("types", DType.INT8, ("tokens",))
LENGTHS = TensorSpec("lengths", DType.INT32, (1,))
IMAGE = TensorSpec("image", DType.FP32, (1, "height", "width"))

TEXTS = Admission((IDS, TYPES, LENGTHS), {"tokens": 8}, {"tokens": "lengths"}, 4)
IMAGES = Admission((IMAGE,), {"height": 16, "width": 32}, {}, 4)
ALONE = Admission((IDS, LENGTHS), {"tokens": 8}, {"tokens": "lengths"}, 0)


def texts(rows=2, tokens=5, lengths=(5, 3), **changes):
    return {
        "ids": np.zeros((rows, tokens), np.int64),
        "types": np.zeros((rows, tokens), np.int8),
        "lengths": np.array(lengths, np.int32).reshape(-1, 1),
        **changes,
    }


def image(*shape):
    return {"image": np.zeros(shape, np.float32)}


def test_a_block_has_the_sizes_and_tensors_of_the_request():
    request = texts()
    block = TEXTS.admit(request)
    assert (block.rows, block.sizes, block.lengths) == (2, {"tokens": 5}, {"tokens": [5, 3]})
    assert all(block.tensors[name] is tensor for name, tensor in request.items())


def test_a_request_without_batch_dimension_is_one_row():
    request = {"ids": np.zeros(5, np.int64), "lengths": np.array([3], np.int32)}
    block = ALONE.admit(request)
    assert (block.rows, block.lengths) == (1, {"tokens": [3]})
    assert block.tensors["ids"].shape == (1, 5)


@pytest.mark.parametrize(
    ("admission", "request_", "fault", "text"),
    [
        (
            TEXTS,
            {"ids": np.zeros((1, 1), np.int64), "id": np.zeros(1), "image": np.zeros(1)},
            RequestFault,
            "found no input 'lengths', no input 'types', input 'id', input 'image', expected "
            "ids, lengths, types",
        ),
        (
            TEXTS,
            texts(ids=np.zeros((2, 5), np.int32)),
            RequestFault,
            "found elements of NumPy type int32, expected INT64",
        ),
        (IMAGES, image(0, 1, 4, 4), ShapeMismatch, "found 0 rows in shape [0, 1, 4, 4], expected"),
        (IMAGES, image(5, 1, 4, 4), ShapeMismatch, "found 5 rows in shape"),
        (IMAGES, image(), ShapeMismatch, "found shape [], expected [rows, 1, height, width]"),
        (IMAGES, image(1, 4, 4), ShapeMismatch, "found shape [1, 4, 4], expected [1, 1, height,"),
        (IMAGES, image(2, 3, 4, 4), ShapeMismatch, "found shape [2, 3, 4, 4], expected [2, 1,"),
        (IMAGES, image(1, 1, 0, 4), ShapeMismatch, "found height 0 in shape [1, 1, 0, 4],"),
        (IMAGES, image(1, 1, 4, 33), ShapeMismatch, "found width 33 in shape [1, 1, 4, 33],"),
        (
            TEXTS,
            texts(types=np.zeros((2, 4), np.int8)),
            ShapeMismatch,
            "found tokens 4 in shape [2, 4], expected 5, the size of axis "
            "'tokens' elsewhere in the request",
        ),
        (TEXTS, texts(lengths=(5, 3, 1)), ShapeMismatch, "found shape [3, 1], expected [2, 1]"),
        (TEXTS, texts(lengths=(5, 0)), RequestFault, "found length 0 in row 1, expected 1 to 5,"),
        (TEXTS, texts(lengths=(6, 5)), RequestFault, "found length 6 in row 0, expected 1 to 5"),
        (TEXTS, texts(lengths=(1, -1)), RequestFault, "found length -1 in row 1"),
        (
            ALONE,
            {"ids": np.zeros((2, 5), np.int64), "lengths": np.ones(1, np.int32)},
            ShapeMismatch,
            "found shape [2, 5], expected [tokens]",
        ),
        (
            ALONE,
            {"ids": np.zeros(9, np.int64), "lengths": np.ones(1, np.int32)},
            ShapeMismatch,
            "found tokens 9 in shape [9], expected 1 to 8 (limit.tokens)",
        ),
    ],
)
def test_refusal_names_input_found_and_expected(admission, request_, fault, text):
    with pytest.raises(fault) as raised:
        admission.admit(request_)
    assert text in str(raised.value)
    assert type(raised.value) is fault


def test_the_largest_unsigned_lengths_are_refused():
    lengths = TensorSpec("lengths", DType.UINT64, ())
    admission = Admission((IDS, lengths), {"tokens": 8}, {"tokens": "lengths"}, 4)
    request = {"ids": np.zeros((1, 5), np.int64), "lengths": np.array([2**64 - 1], np.uint64)}
    with pytest.raises(RequestFault, match="found length 18446744073709551615"):
        admission.admit(request)


# -- inputs that a request may lack -----------------------------------------------------------

SCALES = TensorSpec("scales", DType.FP32, (2,))
OPTIONAL = Admission(
    (TYPES, IDS, SCALES, LENGTHS),
    {"tokens": 8},
    {"tokens": "lengths"},
    4,
    defaults={"types": 7, "scales": 0.5, "lengths": 0},
)


def ids(rows=2, tokens=5):
    return {"ids": np.zeros((rows, tokens), np.int64)}


def test_missing_inputs_have_their_default_at_the_size_of_the_request():
    block = OPTIONAL.admit(ids(rows=2, tokens=5))
    np.testing.assert_array_equal(block.tensors["types"], np.full((2, 5), 7, np.int8))
    assert block.tensors["types"].dtype == np.int8
    assert block.tensors["scales"].tolist() == [[0.5, 0.5]] * 2


def test_rows_without_lengths_are_as_long_as_the_request():
    block = OPTIONAL.admit(ids(rows=2, tokens=5))
    assert block.lengths == {"tokens": [5, 5]}
    np.testing.assert_array_equal(block.tensors["lengths"], np.full((2, 1), 5, np.int32))
    assert OPTIONAL.admit(ids(rows=1, tokens=8)).lengths == {"tokens": [8]}


# -- types and sizes of any kind --------------------------------------------------------------


def test_unknown_sizes_and_bytes_are_not_restricted():
    admission = Admission((IDS, TensorSpec("text", DType.BYTES, (UNKNOWN,))), {"tokens": 8}, {}, 4)
    for count in (0, 3, 1000):
        text = np.full((2, count), b"a", object)
        assert admission.admit({**ids(2), "text": text}).tensors["text"] is text
    with pytest.raises(ShapeMismatch) as raised:
        admission.admit({**ids(2), "text": np.full((1, 3), b"a", object)})
    assert str(raised.value) == "input 'text': found shape [1, 3], expected [2, *]"
    with pytest.raises(RequestFault, match="found elements of NumPy type int64, expected BYTES"):
        admission.admit({**ids(2), "text": np.zeros((2, 3), np.int64)})


# -- what a batch must hold -------------------------------------------------------------------


def test_a_batch_is_as_large_as_the_longest_row_or_the_answer():
    words = TensorSpec("words", DType.INT64, ("words",))
    hidden = TensorSpec("hidden", DType.FP32, ("tokens", 2))
    request = {**ids(2, 5), "words": np.zeros((2, 4), np.int64)}
    request["lengths"] = np.array([[1], [3]], np.int32)
    for outputs, tokens in ((), 3), ((hidden,), 5):
        block = Admission(
            (IDS, LENGTHS, words),
            {"tokens": 8, "words": 8},
            {"tokens": "lengths"},
            4,
            outputs=outputs,
        ).admit(request)
        assert block.needs == {"tokens": tokens, "words": 4}
        assert block.sizes == {"tokens": 5, "words": 4}


def admission_with(tables, *, inputs=(IDS, LENGTHS), limits=None, outputs=(), rows=8):
    limits = limits or {"tokens": 512}
    return Admission(
        inputs,
        limits,
        {"tokens": "lengths"} if LENGTHS in inputs else {},
        rows,
        outputs=outputs,
        gears=Gears(list(limits), limits, rows, tables),
    )


def rows_of(rows, tokens, length=None):
    lengths = np.full((rows, 1), length or tokens, np.int32)
    return {"ids": np.zeros((rows, tokens), np.int64), "lengths": lengths}


BY_TOKENS = admission_with(
    {("batch",): [(8,)], ("tokens",): [(64,), (256,)]}, inputs=(LENGTHS, IDS)
)
BY_ROWS = admission_with({("batch",): [(1,), (4,)]})
JOINT = admission_with({("batch", "tokens"): [(8, 64), (2, 512)]})
SHAPES = admission_with(
    {("batch",): [(8,)], ("height", "width"): [(16, 32), (32, 16)]},
    inputs=(IMAGE,),
    limits={"height": 32, "width": 32},
)
HIDDEN = TensorSpec("hidden", DType.FP32, ("tokens", 4))
BY_TOKENS_ANSWERED = admission_with({("tokens",): [(256,)]}, outputs=(HIDDEN,))


@pytest.mark.parametrize(
    ("admission", "request_"),
    [
        (BY_TOKENS, rows_of(8, 256)),
        (BY_TOKENS, rows_of(1, 300, length=256)),
        (BY_ROWS, rows_of(4, 512)),
        (JOINT, rows_of(8, 64)),
        (JOINT, rows_of(8, 512, length=64)),
        (JOINT, rows_of(2, 512)),
        (SHAPES, image(8, 1, 16, 32)),
        (SHAPES, image(8, 1, 32, 16)),
    ],
)
def test_requests_that_a_gear_holds_are_admitted(admission, request_):
    assert admission.admit(request_).rows


@pytest.mark.parametrize(
    ("admission", "request_", "text"),
    [
        (BY_TOKENS, rows_of(1, 300), "found tokens 300 in shape [1, 300], expected 1 to 256 (the"),
        (BY_TOKENS, rows_of(2, 512, length=257), "found tokens 257 in shape [2, 512], expected 1"),
        (BY_TOKENS_ANSWERED, rows_of(1, 300, length=3), "found tokens 300 in shape [1, 300]"),
        (BY_ROWS, rows_of(5, 12), "found 5 rows in shape [5, 12], expected 1 to 4 (the largest of"),
        (JOINT, rows_of(3, 65), "found 3 rows of tokens 65 in shape [3, 65], expected at most 2"),
        (JOINT, rows_of(8, 65), "found 8 rows of tokens 65 in shape [8, 65], expected"),
        (SHAPES, image(1, 1, 17, 17), "found height 17, width 17 in shape [1, 1, 17, 17],"),
    ],
)
def test_requests_that_no_gear_holds_are_refused(admission, request_, text):
    with pytest.raises(GearOverflow) as raised:
        admission.admit(request_)
    assert text in str(raised.value)


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 8)), min_size=1, max_size=3, unique=True),
    st.integers(1, 4),
    st.integers(1, 8),
)
def test_a_request_is_admitted_if_and_only_if_a_gear_holds_it(table, rows, tokens):
    gears = Gears(["tokens"], {"tokens": 8}, 4, {("batch", "tokens"): table})
    admission = Admission((IDS,), {"tokens": 8}, {}, 4, gears=gears)
    if any(rows <= gear[0] and tokens <= gear[1] for gear in table):
        assert admission.admit(ids(rows, tokens)).rows == rows
    else:
        with pytest.raises(GearOverflow):
            admission.admit(ids(rows, tokens))


# -- sizes of outputs -------------------------------------------------------------------------


def test_requests_with_an_output_size_below_1_are_refused():
    scale = TensorSpec("scale", DType.FP32, ())
    edges = TensorSpec("edges", DType.FP32, (Relation.parse("height - 2"), "width"))
    admission = Admission((scale, IMAGE), {"height": 16, "width": 32}, {}, 4, outputs=(edges,))
    scales = {"scale": np.ones(1, np.float32)}
    assert admission.admit({**scales, **image(1, 1, 3, 1)}).sizes == {"height": 3, "width": 1}
    with pytest.raises(ShapeMismatch) as raised:
        admission.admit({**scales, **image(1, 1, 2, 9)})
    assert str(raised.value) == (
        "input 'image': found height 2 in shape [1, 1, 2, 9], expected sizes of which "
        "'height - 2', a size of output 'edges', is at least 1"
    )


# -- which request ----------------------------------------------------------------------------


def test_faults_name_the_request_if_it_has_an_id():
    with pytest.raises(ShapeMismatch) as raised:
        IMAGES.admit(image(5, 1, 4, 4), request_id="abc")
    assert str(raised.value).startswith("[request id: abc] input 'image': found 5 rows in shape")
    with pytest.raises(RequestFault) as raised:
        IMAGES.admit({}, request_id="abc")
    assert type(raised.value) is RequestFault
    assert str(raised.value) == "[request id: abc] found no input 'image', expected image"


VOCABULARY = {"ids": ValueRange(0, 15)}


def admission(max_batch_size=4, *, lengths=False):
    inputs, axis_lengths = ([IDS, LENGTHS], {"tokens": "lengths"}) if lengths else ([IDS], {})
    return Admission(inputs, {"tokens": 8}, axis_lengths, max_batch_size, ranges=VOCABULARY)


def rows_of_ids(*rows):
    return {"ids": np.array(rows, np.int64)}


@pytest.mark.parametrize("value", [16, -1, 2**62])
def test_an_element_out_of_range_is_named_with_its_place(value):
    with pytest.raises(RequestFault) as raised:
        admission().admit(rows_of_ids([1, 2, 3], [4, value, 6]))
    assert str(raised.value) == (
        f"input 'ids': found {value} at [1, 1], expected 0 to 15 (range.ids)"
    )


@given(st.lists(st.lists(st.integers(-3, 18), min_size=5, max_size=5), min_size=1, max_size=4))
def test_only_data_counts(rows):
    ends = [1 + (row[0] % 5) for row in rows]
    request = {**rows_of_ids(*rows), "lengths": np.array(ends, np.int32)[:, None]}
    sound = all(
        0 <= value <= 15 for row, end in zip(rows, ends, strict=True) for value in row[:end]
    )
    try:
        admission(lengths=True).admit(request)
    except RequestFault:
        assert not sound
    else:
        assert sound


@pytest.mark.parametrize(
    ("value", "sound"), [(0.5, True), (-1, True), (1, True), (1.01, False), (np.nan, False)]
)
def test_nan_is_in_no_range(value, sound):
    spec = TensorSpec("x", DType.FP16, (2,))
    judge = Admission([spec], {}, {}, 1, ranges={"x": ValueRange(-1.0, 1.0)})
    request = {"x": np.array([[0, value]], np.float16)}
    if sound:
        judge.admit(request)
    else:
        with pytest.raises(RequestFault, match=r"at \[0, 1\], expected -1.0 to 1.0"):
            judge.admit(request)
