"""Inputs from files, from folders, and generated; errors name the field."""

import base64
import json

import numpy as np
import pytest

from triton_replay.errors import ReplayError
from triton_replay.loading.input_data import InputOptions, read_streams
from triton_replay.loading.tensors import batches, model_of


def model(*inputs, batch=0, optional=()):
    """Return a model with these inputs: name, datatype, shape."""
    axis = [-1] if batch else []
    metadata = {
        "inputs": [{"name": n, "datatype": d, "shape": [*axis, *s]} for n, d, s in inputs],
        "outputs": [],
    }
    config = {
        "max_batch_size": batch,
        "input": [{"name": name, "optional": True} for name in optional],
    }
    return model_of("m", "", metadata, config)


PAIR = model(("X", "FP32", [2]), ("T", "BYTES", [1]))


def streams(of, *sources, shapes=None, text=None, length=4):
    options = InputOptions([str(source) for source in sources], shapes or {}, length, text)
    return read_streams(of, options)


def of_json(tmp_path, document, of=PAIR, **options):
    path = tmp_path / "data.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return streams(of, path, **options)


def test_a_file_has_lists_contents_with_shapes_and_base64(tmp_path):
    raw = base64.b64encode(np.array([3, 4], "<f4").tobytes()).decode()
    text = base64.b64encode(b"\2\0\0\0\xff\xfe").decode()
    (rows,) = of_json(
        tmp_path,
        {
            "data": [
                {"X": [[1], [2.5]], "T": ["ä"]},
                {"X": {"content": {"b64": raw}, "shape": [2]}, "T": {"b64": text}},
                {"X": {"b64": raw, "shape": [2]}, "T": {"content": ["b"], "shape": [1]}},
            ]
        },
    )
    values = [np.frombuffer(row["X"].data, "<f4").tolist() for row in rows]
    assert values == [[1, 2.5], [3, 4], [3, 4]]
    assert [row["T"].data for row in rows] == [
        b"\2\0\0\0\xc3\xa4",
        b"\2\0\0\0\xff\xfe",
        b"\1\0\0\0b",
    ]


def test_lists_of_lists_are_streams(tmp_path):
    one = {"X": [1, 2], "T": [""]}
    found = of_json(tmp_path, {"data": [[one, one], [one]]})
    assert [len(stream) for stream in found] == [2, 1]


@pytest.mark.parametrize(
    ("document", "reported"),
    [
        ("{", "not JSON"),
        ("[]", "data: expected a list of objects, or of lists"),
        ({"data": []}, "found empty data"),
        ({"data": [3]}, r"data\[0\]: found a number, expected an object"),
        ({"data": [{"X": [1, 2]}]}, r"data\[0\]: input T is missing"),
        ({"data": [{"X": [1, 2], "T": ["a"], "Z": 1}]}, r"data\[0\].Z: not an input of the model"),
        ({"data": [{"X": [1], "T": ["a"]}]}, r"data\[0\].X: found 1 values, expected 2 for shape"),
        ({"data": [{"X": [1, "a"], "T": ["a"]}]}, r"data\[0\].X\[1\]: found 'a', expected FP32"),
        ({"data": [{"X": [1, 2], "T": [7]}]}, r"data\[0\].T\[0\]: found 7, expected BYTES"),
        ({"data": [[{"X": [1], "T": ["a"]}]]}, r"data\[0\]\[0\].X: found 1 values"),
        ({"data": [{"X": {"shape": [2]}, "T": ["a"]}]}, r"data\[0\].X: content is missing"),
        (
            {"data": [{"X": {"content": [1], "shape": [1]}, "T": ["a"]}]},
            r"data\[0\].X.shape: found \[1\], expected \[2\]",
        ),
        (
            {"data": [{"X": {"content": [1, 2], "shape": "2"}, "T": ["a"]}]},
            r"data\[0\].X.shape: found '2', expected a list of sizes",
        ),
        ({"data": [{"X": {"b64": "AA="}, "T": ["a"]}]}, r"data\[0\].X.b64: not base64"),
        ({"data": [{"X": {"b64": "AAAA"}, "T": ["a"]}]}, r"X.b64: found 3 bytes, expected 8"),
        (
            {"data": [{"X": [1, 2], "T": {"b64": "AAAA"}}]},
            r"T.b64: expected 1 elements for shape \[1\], each preceded by its length",
        ),
    ],
)
def test_an_error_in_a_file_names_the_field(tmp_path, document, reported):
    with pytest.raises(ReplayError, match=reported):
        of_json(tmp_path, document)


def test_integers_out_of_range_are_reported(tmp_path):
    for value in (300, 1.5):
        with pytest.raises(ReplayError, match=r"data\[0\].X"):
            of_json(tmp_path, {"data": [{"X": [value]}]}, model(("X", "UINT8", [1])))


def test_the_shape_option_applies_to_data_without_shape(tmp_path):
    of = model(("X", "INT64", [-1, 2]))
    (rows,) = of_json(tmp_path, {"data": [{"X": [1, 2]}]}, of, shapes={"X": (1, 2)})
    assert rows[0]["X"].shape == (1, 2)
    with pytest.raises(ReplayError, match=r"--shape: X has shape \[-1, 2\]"):
        of_json(tmp_path, {"data": [{"X": [1, 2]}]}, of)


@pytest.mark.parametrize(
    "datatype",
    ["BOOL", "INT8", "UINT16", "INT32", "UINT64", "FP16", "BF16", "FP32", "FP64", "BYTES"],
)
def test_zeros_and_random_values_for_each_datatype(datatype):
    of = model(("X", datatype, [3]))
    ((zero,),) = streams(of, "zero")
    ((drawn,),) = streams(of, "random")
    ((again,),) = streams(of, "random")
    assert not any(zero["X"].data)
    assert drawn == again
    if datatype == "BYTES":
        assert len(drawn["X"].data) == 3 * (4 + 4)
    else:
        assert len(drawn["X"].data) == len(zero["X"].data)


def test_optional_inputs_are_sent_only_if_a_file_has_them(tmp_path):
    of = model(("X", "INT8", [1]), ("Y", "INT8", [1]), optional=["Y"])
    assert list(streams(of, "zero")[0][0]) == ["X"]
    assert list(of_json(tmp_path, {"data": [{"Y": [1], "X": [2]}]}, of)[0][0]) == ["X", "Y"]


def test_a_folder_has_a_file_for_each_input(tmp_path):
    (tmp_path / "X").write_bytes(bytes(8))
    with pytest.raises(ReplayError, match="T: missing; expected the data of T"):
        streams(PAIR, tmp_path)
    (tmp_path / "T").write_text("one\ntwo\n")
    with pytest.raises(ReplayError, match="found 2 values, expected 1"):
        streams(PAIR, tmp_path)
    (tmp_path / "T").write_text("one\n")
    ((row,),) = streams(PAIR, tmp_path)
    assert row["T"].data == b"\3\0\0\0one"


def test_a_batch_consists_of_consecutive_rows(tmp_path):
    of = model(("X", "INT8", [-1]), batch=4)
    rows = {"data": [{"X": {"content": [n], "shape": [1]}} for n in range(3)]}
    (requests,) = batches(of, of_json(tmp_path, rows, of), 2)
    assert [list(one.tensors[0].data) for one in requests] == [[0, 1], [1, 2], [2, 0]]
    assert requests[0].tensors[0].shape == (2, 1)
    rows["data"][2]["X"] = {"content": [1, 2], "shape": [2]}
    with pytest.raises(ReplayError, match="'X' has different shapes"):
        batches(of, of_json(tmp_path, rows, of), 2)
