"""The benchmark of graphs of every kind: what it sends fits the models, each way is its own."""

import json

import numpy as np
import pytest

from benchmarks.any_graph import KINDS, WAYS, as_sent, print_results, repository, summary
from benchmarks.instruments import read_config


@pytest.mark.parametrize("name", KINDS)
def test_requests_have_sizes_that_the_model_takes(name):
    kind = KINDS[name]
    ((_, config, _),) = repository_of(name, "ge_runtime")
    first = config.input[0]
    axes = config.parameters[f"axes.{first.name}"].string_value.split(", ")
    for tensors in kind.draw(np.random.default_rng(1)):
        assert list(tensors) == [tensor.name for tensor in config.input]
        array = tensors[first.name]
        free = [size for size, dim in zip(array.shape[1:], first.dims, strict=True) if dim == -1]
        for axis, size in zip(axes, free, strict=True):
            assert 1 <= size <= int(config.parameters[f"limit.{axis}"].string_value)
            assert size % int(config.parameters[f"align.{axis}"].string_value or 1) == 0


def repository_of(name, way):
    with repository(KINDS[name], way) as folder:
        model = folder / KINDS[name].model
        yield model, read_config(model), (model / "1" / "model.py").read_text()


def test_each_way_is_served_in_its_own_way():
    told = {
        way: (
            config.HasField("dynamic_batching"),
            "onnxruntime.InferenceSession" in code,
            config.parameters["pad_to"].string_value,
        )
        for way in WAYS
        for _, config, code in repository_of("recogniser", way)
    }
    assert told == {
        "alone": (False, False, ""),
        "longest": (True, True, "longest"),
        "maximum": (True, True, "maximum"),
        "ge_runtime": (True, False, ""),
    }


def test_a_request_says_what_follows_it():
    sent = as_sent(KINDS["recogniser"], {"line": np.zeros((1, 48, 32, 3), np.uint8)})
    head, _, body = sent.content.partition(b"\r\n\r\n")
    lengths = dict(line.split(b": ") for line in head.split(b"\r\n")[1:])
    header = json.loads(body[: int(lengths[b"Inference-Header-Content-Length"])])
    assert header["inputs"][0]["shape"] == [1, 48, 32, 3]
    assert int(lengths[b"Content-Length"]) == len(body)
    assert sent.tokens == 48 * 32 * 3


def test_gains_are_of_the_same_turn(capsys):
    def turns(*items):
        others = dict.fromkeys(("cpu_ms", "p50_ms", "p99_ms", "padding"), 1.0)
        return [{"items": each, **others} for each in items]

    print_results("x", summary({"alone": turns(10, 20, 40), "ge_runtime": turns(15, 20, 80)}))
    assert "1.50x (1.00 to 2.00)" in capsys.readouterr().out
