"""`unpad: auto` and `ge-runtime unpad`: the choice, the kept graph, the plan and the messages."""

from contextlib import ExitStack

import numpy as np
import onnxruntime
import pytest
from runtime.rewriting.encoders import exported, write
from runtime.support.configs import model_config, tensor
from runtime.support.graphs import ENCODER
from runtime.support.graphs import write as write_graph

from ge_runtime import Runtime, cli
from ge_runtime.batching.partition import RequestSizes
from ge_runtime.errors import GearOverflow
from ge_runtime.rewriting import at_load
from ge_runtime.rewriting.proof import TIMED, Gain, Proof

ROWS = [np.arange(2, 2 + length)[None] for length in (3, 9, 1, 5)]


@pytest.fixture
def gains(monkeypatch, tmp_path):
    """The measured gains, and a cache without results."""
    gains = dict.fromkeys(TIMED, 1.5)
    monkeypatch.setattr(Proof, "measure", lambda _: Gain(gains))
    monkeypatch.setenv("GE_RUNTIME_CACHE", str(tmp_path / "cache"))
    return gains


@pytest.fixture
def opened(tmp_path, gains):
    """Return a function: parameters -> a runtime of a small encoder."""
    version_dir = tmp_path / "1"
    version_dir.mkdir()
    write(version_dir, exported("minilm"))
    with ExitStack() as stack:

        def open_runtime(**parameters):
            config = model_config(
                [tensor("input_ids", "INT64", [-1], allow_ragged_batch=True)],
                [tensor("embedding", "FP32", [16])],
                {
                    "axes.input_ids": "tokens",
                    "limit.tokens": "32",
                    "mask.attention_mask": "tokens",
                    "cost": "launch_us=5000, element_ns=1, element2_ns=0",
                    **parameters,
                },
                name="encoder",
            )
            runtime = Runtime.open(version_dir, config, instance_name="encoder_0")
            stack.callback(runtime.close)
            return runtime

        yield open_runtime


def lines_of(runtime):
    return [line for line in runtime.report if ": unpad " in line]


def embeddings(runtime):
    answers = runtime.infer([{"input_ids": row} for row in ROWS])
    return np.concatenate([answer["embedding"] for answer in answers])


def test_an_encoder_is_served_without_padding(opened):
    original, rewritten = opened(), opened(unpad="auto")
    np.testing.assert_allclose(embeddings(rewritten), embeddings(original), atol=1e-5)
    assert not lines_of(original)
    (line,) = lines_of(rewritten)
    assert ": unpad model.onnx: " in line
    assert line.endswith(
        "12 of them linear layers, are computed for valid tokens only, by 'attention_mask'; work "
        "per CPU second one row 1.50x, equal rows 1.50x, different rows 1.50x"
    )
    assert any("its padding is removed" in line for line in rewritten.report)


def test_the_plan_counts_tokens_instead_of_padded_rows(opened):
    sizes = RequestSizes([1, 2], {"tokens": [3, 9]})
    for runtime, valid in ((opened(), None), (opened(unpad="auto"), 3 + 2 * 9)):
        partitioner = runtime._parts.partitioner
        assert partitioner.execution_of([0, 1], sizes).valid == valid


def test_a_limit_of_tokens_bounds_requests_executions_and_memory(opened):
    free, limited = opened(unpad="auto"), opened(unpad="auto", **{"limit.total.tokens": "40"})
    assert limited.plan.workspace_bytes < free.plan.workspace_bytes / 2
    with pytest.raises(GearOverflow, match=r"2 row\(s\) of tokens 21, 42 in total in shape"):
        raise limited.infer([{"input_ids": np.ones((2, 21), np.int64)}])[0]
    sizes = RequestSizes([1] * 6, {"tokens": [20, 5, 9, 13, 20, 30]})
    plan = limited._parts.partitioner.plan(sizes)
    assert len(plan) > len(free._parts.partitioner.plan(sizes))
    assert all(each.gear.rows * each.gear.extents["tokens"] <= 40 for each in plan)


@pytest.mark.parametrize("name", TIMED)
def test_a_graph_that_is_not_faster_keeps_its_padding(opened, gains, name):
    gains[name] = 0.9
    (line,) = lines_of(opened(unpad="auto"))
    assert f"padding is kept: the graph is not faster without padding: {Gain(gains)}" in line


@pytest.mark.parametrize("faster", [True, False])
def test_the_next_load_reads_the_decision(opened, gains, monkeypatch, faster):
    gains["one row"] = 2.0 if faster else 0.5
    first = lines_of(opened(unpad="auto"))[0]
    monkeypatch.setattr(at_load, "unpad", None)
    runtime = opened(unpad="auto")
    text = first.partition(": unpad ")[2].partition(": ")[2]
    assert text in lines_of(runtime)[0]
    assert "; kept in " in lines_of(runtime)[0]
    embeddings(runtime)


def test_a_graph_without_attention_is_served_with_padding(tmp_path, gains):
    from runtime.support.configs import encoder_config

    write_graph(ENCODER, "onnxruntime", tmp_path)
    config = encoder_config({"unpad": "auto"})
    runtime = Runtime.open(tmp_path, config, instance_name="encoder_0")
    runtime.close()
    (line,) = lines_of(runtime)
    assert "padding is kept" in line
    assert "found no Softmax, expected the attention of an encoder" in line


def test_reproducible_answers_keep_padding(opened):
    gears = {"gears.batch": "4", "gears.tokens": "8, 32"}
    (line,) = lines_of(opened(unpad="auto", reproducible="true", **gears))
    assert "found reproducible: true" in line


def test_without_a_cache_padding_is_kept(opened, monkeypatch):
    for name in ("GE_RUNTIME_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    (line,) = lines_of(opened(unpad="auto"))
    assert "expected GE_RUNTIME_CACHE to name one" in line


class TestCommand:
    def test_writes_a_verified_graph(self, tmp_path, gains, capsys):
        path = write(tmp_path, exported("bge"))
        assert cli.main(["unpad", str(path), "--threads", "1"]) == 0
        target = tmp_path / "model.unpadded.onnx"
        printed = capsys.readouterr().out
        assert printed.startswith(f"{target}: ")
        assert "verified" in printed
        session = onnxruntime.InferenceSession(str(target))
        assert session.get_modelmeta().custom_metadata_map["ge_runtime.unpadded"] == (
            "attention_mask"
        )
        assert sorted(entry.name for entry in tmp_path.iterdir()) == [
            "model.onnx",
            "model.unpadded.onnx",
        ]

    @pytest.mark.parametrize(
        ("arguments", "reason"),
        [
            (["model.onnx", "-o", "model.onnx"], "found the graph itself"),
            (["other.onnx"], "found no file"),
        ],
    )
    def test_invalid_arguments(self, tmp_path, capsys, monkeypatch, arguments, reason):
        write(tmp_path, exported("bge"))
        monkeypatch.chdir(tmp_path)
        assert cli.main(["unpad", *arguments]) == 2
        assert reason in capsys.readouterr().err

    def test_external_weights_are_written_beside_the_graph(self, tmp_path, gains):
        import onnx

        source, target = tmp_path / "source", tmp_path / "target"
        source.mkdir()
        target.mkdir()
        model = onnx.load_from_string(exported("bge"))
        onnx.save(
            model,
            str(source / "model.onnx"),
            save_as_external_data=True,
            location="weights.bin",
            size_threshold=0,
        )
        made = target / "model.onnx"
        assert cli.main(["unpad", str(source / "model.onnx"), "-o", str(made)]) == 0
        assert {entry.name for entry in target.iterdir()} == {"model.onnx", "model.onnx.data"}
        onnxruntime.InferenceSession(str(made))
