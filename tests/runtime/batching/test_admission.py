import numpy as np
import pytest

from ge_runtime.batching.admission import Admission
from ge_runtime.errors import RequestFault, ShapeMismatch
from ge_runtime.specs import DType, TensorSpec

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


def test_a_block_has_the_requests_measures_and_its_very_tensors():
    request = texts()
    block = TEXTS.admit(request)
    assert (block.rows, block.sizes, block.lengths) == (2, {"tokens": 5}, {"tokens": [5, 3]})
    assert all(block.tensors[name] is tensor for name, tensor in request.items())


def test_sizes_at_the_limits_are_admitted():
    assert IMAGES.admit(image(4, 1, 16, 32)).sizes == {"height": 16, "width": 32}
    assert IMAGES.admit(image(1, 1, 1, 1)).sizes == {"height": 1, "width": 1}


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
            "input 'ids': found elements of NumPy type int32, expected INT64",
        ),
        (
            IMAGES,
            image(0, 1, 4, 4),
            ShapeMismatch,
            "input 'image': found 0 rows in shape [0, 1, 4, 4], expected 1 to 4 (max_batch_size)",
        ),
        (IMAGES, image(5, 1, 4, 4), ShapeMismatch, "input 'image': found 5 rows in shape"),
        (
            IMAGES,
            image(),
            ShapeMismatch,
            "input 'image': found shape [], expected [rows, 1, height, width]",
        ),
        (
            IMAGES,
            image(1, 4, 4),
            ShapeMismatch,
            "input 'image': found shape [1, 4, 4], expected [1, 1, height, width]",
        ),
        (
            IMAGES,
            image(2, 3, 4, 4),
            ShapeMismatch,
            "input 'image': found shape [2, 3, 4, 4], expected [2, 1, height, width]",
        ),
        (
            IMAGES,
            image(1, 1, 0, 4),
            ShapeMismatch,
            "input 'image': found height 0 in shape [1, 1, 0, 4], expected 1 to 16 (limit.height)",
        ),
        (
            IMAGES,
            image(1, 1, 4, 33),
            ShapeMismatch,
            "input 'image': found width 33 in shape [1, 1, 4, 33], expected 1 to 32 (limit.width)",
        ),
        (
            TEXTS,
            texts(types=np.zeros((2, 4), np.int8)),
            ShapeMismatch,
            "input 'types': found tokens 4 in shape [2, 4], expected 5, the size of axis "
            "'tokens' elsewhere in the request",
        ),
        (
            TEXTS,
            texts(lengths=(5, 3, 1)),
            ShapeMismatch,
            "input 'lengths': found shape [3, 1], expected [2, 1]",
        ),
        (
            TEXTS,
            texts(lengths=(5, 0)),
            RequestFault,
            "input 'lengths': found length 0 in row 1, expected 1 to 5, the size of axis "
            "'tokens' in the request",
        ),
        (TEXTS, texts(lengths=(6, 5)), RequestFault, "found length 6 in row 0, expected 1 to 5"),
        (TEXTS, texts(lengths=(1, -1)), RequestFault, "found length -1 in row 1"),
        (
            ALONE,
            {"ids": np.zeros((2, 5), np.int64), "lengths": np.ones(1, np.int32)},
            ShapeMismatch,
            "input 'ids': found shape [2, 5], expected [tokens]",
        ),
        (
            ALONE,
            {"ids": np.zeros(9, np.int64), "lengths": np.ones(1, np.int32)},
            ShapeMismatch,
            "input 'ids': found tokens 9 in shape [9], expected 1 to 8 (limit.tokens)",
        ),
    ],
)
def test_refusal_names_input_found_and_expected(admission, request_, fault, text):
    with pytest.raises(fault) as raised:
        admission.admit(request_)
    assert text in str(raised.value)
    assert type(raised.value) is fault


def test_unsigned_lengths_beyond_all_others_are_refused():
    lengths = TensorSpec("lengths", DType.UINT64, ())
    admission = Admission((IDS, lengths), {"tokens": 8}, {"tokens": "lengths"}, 4)
    request = {"ids": np.zeros((1, 5), np.int64), "lengths": np.array([2**64 - 1], np.uint64)}
    with pytest.raises(RequestFault, match="found length 18446744073709551615"):
        admission.admit(request)
