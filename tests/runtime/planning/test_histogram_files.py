import json

import pytest

from ge_runtime.planning.histogram import Histogram, HistogramFault, read_histogram


@pytest.fixture
def written(tmp_path):
    """Return a function that writes a file and returns its path."""

    def write(content):
        path = tmp_path / "sizes"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return write


IDS = {"ids": ("tokens",)}
PAIR = {"query": ("q",), "passage": ("p",), "weights": ("p",)}
READ = {
    "CSV": ("height,width\n480, 640\n512,512\n\n480,640\n", {}, {(480, 640): 2, (512, 512): 1}),
    "CSV with counts": ("\ufeffcount,tokens\n7,12\n1,13\n", {}, {(12,): 7, (13,): 1}),
    "numbers along two axes": (
        "480 640\n\n512, 512\n480 640\n",
        {"axes": ["height", "width"]},
        {(480, 640): 2, (512, 512): 1},
    ),
    "a list": ([12, 13, 12], {"axes": ["tokens"]}, {(12,): 2, (13,): 1}),
    "lists": ([[4, 5], [6, 7]], {"axes": ["height", "width"]}, {(4, 5): 1, (6, 7): 1}),
    # perf_analyzer's input data
    "shapes": (
        {
            "data": [
                {"image": {"content": [0.5] * 12, "shape": [1, 3, 4]}},
                {"image": {"content": {"b64": "AAAA"}, "shape": [3, 3, 4]}},
                {"image": {"b64": "AAAA", "shape": [3, 8, 9]}, "other": [1]},
            ],
            "validation_data": [],
        },
        {"tensors": {"image": (None, "height", "width")}},
        {(3, 4): 2, (8, 9): 1},
    ),
    "contents": (
        {"data": [{"ids": [1, 2, 3]}, {"ids": {"content": [7, 8]}}]},
        {"tensors": IDS},
        {(3,): 1, (2,): 1},
    ),
    "sequences": (
        {"data": [[{"ids": [1]}, {"ids": [1, 2]}], [{"ids": [1]}]]},
        {"tensors": IDS},
        {(1,): 2, (2,): 1},
    ),
    "axes of several inputs": (
        {"data": [{"query": [1, 2], "passage": [1, 2, 3], "weights": [1, 1, 1]}]},
        {"tensors": PAIR, "axes": ["p", "q"]},
        {(3, 2): 1},
    ),
}


@pytest.mark.parametrize("name", READ)
def test_sizes_are_read(written, name):
    content, options, counts = READ[name]
    assert read_histogram(written(content), **options).counts() == counts


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("-12\n13\n", "line 1: found '-12', expected a header of axis names"),
        ("count\n1\n", "line 1: found 'count', expected a header"),
        ("a,a\n1,1\n", "line 1: found 'a,a', expected a header"),
        ("", "line 1: found '', expected a header"),
        ("tokens\n", "found no sizes, expected at least one"),
        ("tokens\n12\n-3\n", "line 3, column 'tokens': found '-3', expected a whole number"),
        ("tokens,count\n12,0\n", "line 2, column 'count': found 0, expected a whole number"),
        ("a,b\n1\n", "line 2: found 1 values, expected 2"),
    ],
)
def test_csv_errors_name_the_line(written, text, message):
    path = written(text)
    with pytest.raises(HistogramFault, match=message) as caught:
        read_histogram(path)
    assert str(caught.value).startswith(f"{path}: ")


@pytest.mark.parametrize(
    "text", ["12 97\n33 12", "12\n97\n\n33\n12\n", "12, 97,33; 12", "12,97,33,12,"]
)
def test_separators_of_numbers(written, text):
    histogram = read_histogram(written(text), axes=["tokens"])
    assert histogram.counts() == {(12,): 2, (97,): 1, (33,): 1}
    assert read_histogram(written(text), unnamed=["words"]).axes == ("words",)
    assert read_histogram(written("height,width\n1,2\n")).axes == ("height", "width")


@pytest.mark.parametrize(
    ("text", "axes", "message"),
    [
        ("12 13", [], "found sizes without axis names. Use --axes to name them"),
        ("12\n0 13", ["a"], "line 2: found 0, expected a whole number of at least 1"),
        ("12\n13 x", ["a"], "line 2: found 'x', expected a whole number of at least 1"),
        ("12 13\n14", ["a", "b"], r"line 2: found '14', expected a size for each of \['a', 'b'\]"),
    ],
)
def test_errors_of_numbers_name_the_line(written, text, axes, message):
    with pytest.raises(HistogramFault, match=message):
        read_histogram(written(text), axes=axes)


def test_a_subset_of_axes(tmp_path):
    recorded = Histogram(["batch", "height", "width"])
    recorded.add((2, 12, 34))
    recorded.save(tmp_path / "histogram.json")
    histogram = read_histogram(tmp_path / "histogram.json", axes=["width", "height"])
    assert histogram.axes == ("width", "height")
    assert histogram.counts() == {(34, 12): 2}


@pytest.mark.parametrize(
    ("content", "axes", "message"),
    [
        ([12], [], "found sizes without axis names. Use --axes to name them"),
        ([12, [3, 4]], ["tokens"], r"\[1\]: found \[3, 4\], expected a size for each of"),
        ([12, 1.5], ["tokens"], r"\[1\]: found 1.5, expected a whole number of at least 1"),
        ([12, True], ["tokens"], r"\[1\]: found True, expected a whole number of at least 1"),
        ("[12", ["tokens"], "Expecting ',' delimiter"),
        ({"axes": ["a"], "counts": [[3, 1]]}, ["b"], "found no axis 'b', expected one of: a"),
        ({"sizes": [1]}, [], "axes: found None, expected a list of names"),
    ],
)
def test_json_errors_name_the_place(written, content, axes, message):
    with pytest.raises(HistogramFault, match=message):
        read_histogram(written(content), axes=axes)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"ids": [1]}, "data: found dict, expected a list of requests"),
        ([{"ids": [1]}, 5], r"data\[1\]: found int, expected a list of requests"),
        ([{"idz": [1]}], r"data\[0\]: found no input 'ids', expected one of: idz"),
        ([{"ids": {"b64": "AA"}}], r"data\[0\].ids: found no 'shape', expected one"),
        ([{"ids": {"shape": 3}}], r"data\[0\].ids: found shape 3, expected a list of sizes"),
        ([{"ids": {"shape": [2, 3]}}], r"data\[0\].ids: found shape \[2, 3\], expected 1 dims"),
        ([{"ids": {"shape": [0]}}], r"data\[0\].ids: shape: found 0, expected a whole number"),
        ([[{"ids": []}]], r"data\[0\]\[0\].ids: found 0, expected a whole number of at least 1"),
        ([], "found no sizes, expected at least one"),
    ],
)
def test_errors_of_input_data_name_the_place(written, data, message):
    with pytest.raises(HistogramFault, match=message):
        read_histogram(written({"data": data}), tensors=IDS)


def test_inputs_with_different_sizes_of_an_axis_are_refused(written):
    data = [{"ids": [1, 2], "mask": [1]}]
    with pytest.raises(HistogramFault, match=r"mask: found 1 along 't', expected 2, as in the"):
        read_histogram(written({"data": data}), tensors={"ids": ("t",), "mask": ("t",)})


def test_input_data_needs_axes(written):
    with pytest.raises(HistogramFault, match="Use --config, or --axes INPUT="):
        read_histogram(written({"data": [{"ids": [1]}]}))
