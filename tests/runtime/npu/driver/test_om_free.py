"""Models of free shapes on a simulated card: compiled for ranges, outside of all plans."""

import json
import logging
from contextlib import ExitStack

import numpy as np
import pytest
from runtime.engines.conformance_engine import EngineConformance, token_batch
from runtime.npu.driver.test_om_serving import on_card
from runtime.support.ascend import compile_om
from runtime.support.configs import ENCODER_CONFIG, encoder_config
from runtime.support.graphs import ENCODER, NONZERO, TABLE, copy_of, write

from ascend_simulator.models.loaded import models
from ge_runtime import ArtifactFault, PlanFault, Runtime
from ge_runtime.child_process import ChildResult, Outcome
from ge_runtime.cli import main
from ge_runtime.cli.doctor import Model, check_models
from ge_runtime.cli.inspect import inspect
from ge_runtime.engines.artifact import Artifact
from ge_runtime.errors import EngineFault, EngineLost, OutOfMemory
from ge_runtime.npu.engines.ascend_backend import AscendBackend

pytestmark = pytest.mark.brute_force

TOKENS = "--input_shape=input_ids:1~8,1~32;attention_mask:1~8,1~32"
ALLOWED = {"unplanned_memory": "allowed"}
LARGEST = 64
CONFIG = f"""
name: "encoder"
{ENCODER_CONFIG}
parameters {{ key: "devices" value {{ string_value: "npu:0" }} }}
parameters {{ key: "unplanned_memory" value {{ string_value: "allowed" }} }}
"""


@pytest.fixture
def open_om():
    """A function: an engine for a file, bound for its largest sizes; closed at the end."""
    with ExitStack() as stack:

        def open_om(path, **options):
            place = AscendBackend(0, unplanned=True, **options)
            stack.callback(place.close)
            engine = place.open([Artifact(path, "om", "")], threads=1, outputs=())
            stack.callback(engine.close)
            shapes = {
                tensor.name: tuple(
                    high if high > 0 else LARGEST for _, high in engine._model.ranges[index]
                )
                for index, tensor in enumerate(engine.signature.inputs)
            }
            engine.bind([shapes], place.memory)
            return engine

        yield open_om


@pytest.fixture
def encoder(tmp_path, open_om):
    write(ENCODER, "onnxruntime", tmp_path)
    return open_om(compile_om(tmp_path, TOKENS))


def ranges_of(graph, folder):
    """--input_shape in which every size that varies is open."""
    import onnx

    def dims(value):
        return [d.dim_value or -1 for d in value.type.tensor_type.shape.dim]

    inputs = onnx.load(folder / "model.onnx").graph.input
    return "--input_shape=" + ";".join(f"{i.name}:{','.join(map(str, dims(i)))}" for i in inputs)


class TestOmFreeEngine(EngineConformance):
    @pytest.fixture
    def opened(self, tmp_path, open_om):
        def opened(graph, threads=1):
            folder = tmp_path / graph.name
            write(graph, "onnxruntime", folder)
            return open_om(compile_om(folder, ranges_of(graph, folder)))

        return opened

    def test_weights_are_counted(self, opened):
        assert 0 <= opened(ENCODER).weights_bytes() - TABLE.nbytes < 2048  # each on a granule

    def test_intermediates_are_reported(self, opened):
        shapes = dict.fromkeys(("input_ids", "attention_mask"), (8, 32))
        assert opened(ENCODER).intermediates(shapes).lifetimes == ()  # they are in no plan


def right(engine, rows, tokens, seed=0):
    inputs, expected = token_batch(rows, tokens, seed)
    found = engine.run(inputs, {"embedding": None})["embedding"]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


# -- executions -----------------------------------------------------------------------------------


def test_what_the_driver_allocates_for_an_output_is_given_back_each_time(
    tmp_path, open_om, machine
):
    write(NONZERO, "onnxruntime", tmp_path)
    engine = open_om(compile_om(tmp_path, "--input_shape=x:-1"))
    before = machine.used("device")
    for values in ([0, 3, 0, 5], [1] * 64, [0, 0]):
        x = np.array(values, np.float32)
        where = engine.run({"x": x}, {"where": None})["where"]
        assert where.tolist() == [np.flatnonzero(x).tolist()]
        assert machine.used("device") == before
    with pytest.raises(EngineFault, match=r"found int64\[1, 3\], expected int64\[1, 1\]"):
        engine.run({"x": np.float32([0, 3])}, {"where": np.empty((1, 3), np.int64)})
    assert machine.used("device") == before


def test_an_output_with_a_known_maximum_size_has_fixed_memory(encoder, machine):
    assert encoder._model.unsized == []
    before = machine.report
    right(encoder, 7, 29)
    right(encoder, 1, 32)
    after = machine.report
    assert (after.mallocs, after.calls["rt.malloc"]) == (before.mallocs, before.calls["rt.malloc"])
    assert "rt.free" not in after.calls


def test_sizes_outside_the_ranges_are_refused_before_the_card_is_asked(encoder, machine):
    calls = machine.report.calls.get("mdl.execute", 0)
    for rows, tokens in ((9, 8), (8, 33)):
        inputs, _ = token_batch(rows, tokens)
        with pytest.raises(
            EngineFault, match=r"expected 1~8,1~32, which the file was compiled for"
        ):
            encoder.run(inputs, {"embedding": None})
    assert machine.report.calls.get("mdl.execute", 0) == calls
    right(encoder, 8, 32)


def test_more_than_there_is_room_for_is_refused(tmp_path, open_om):
    write(copy_of(np.float32), "onnxruntime", tmp_path)
    engine = open_om(compile_om(tmp_path, "--input_shape=x:-1,3"))
    reported = r"input 'x': found 780 bytes, expected at most 768"
    with pytest.raises(EngineFault, match=reported):
        engine.run({"x": np.ones((LARGEST + 1, 3), np.float32)}, {"y": None})


def test_after_a_failed_execution_the_model_is_loaded_again(encoder, machine, caplog):
    right(encoder, 2, 3)
    (model,) = models()._models
    machine.arm("execute@1=507015")
    with pytest.raises(EngineFault, match="507015"):
        right(encoder, 2, 3)
    right(encoder, 5, 7)
    assert [*models()._models] == [model + 1]
    assert "loaded again after a failed execution" in caplog.text


def test_too_little_memory_is_that_and_a_lost_card_is_lost(encoder, machine):
    machine.arm("execute@1=207001")
    with pytest.raises(OutOfMemory):
        right(encoder, 2, 3)
    right(encoder, 2, 3)
    machine.arm("execute@1=lost")
    for _ in range(2):
        with pytest.raises(EngineLost):
            right(encoder, 2, 3)
    assert encoder.lost


def test_a_card_that_cannot_load_it_again_is_lost(encoder, machine):
    machine.arm("execute@1=507015;load@1=507899")
    with pytest.raises(EngineFault):
        right(encoder, 2, 3)
    with pytest.raises(EngineLost):
        right(encoder, 2, 3)


def test_planned_models_of_the_card_load_and_execute_beside_it(encoder, encoder_dir):
    place = AscendBackend(0)
    planned = place.open([Artifact(encoder_dir / "model.om", "om", "")], threads=1, outputs=())
    planned.bind([], place.memory)
    right(planned, 4, 8)
    right(encoder, 3, 5)
    planned.close()
    place.close()
    right(encoder, 3, 6)


@pytest.mark.parametrize("plan", ["load@1=507899", "load@1=245000", "call@2=507010"])
def test_a_load_that_fails_leaves_nothing(tmp_path, machine, open_om, plan):
    write(ENCODER, "onnxruntime", tmp_path)
    path = compile_om(tmp_path, TOKENS)
    place = AscendBackend(0, unplanned=True)
    machine.arm(plan)
    with pytest.raises((ArtifactFault, OutOfMemory, EngineLost)):
        place.open([Artifact(path, "om", "")], threads=1, outputs=())
    place.close()


def test_with_io_buffers_it_is_refused(tmp_path, open_om):
    write(ENCODER, "onnxruntime", tmp_path)
    with pytest.raises(PlanFault, match="found io_buffers, expected none"):
        open_om(compile_om(tmp_path, TOKENS), buffers=1)


def test_images_are_refused(tmp_path, open_om):
    write(ENCODER, "onnxruntime", tmp_path)
    with pytest.raises(PlanFault, match=r"found images \(x\), expected none"):
        open_om(compile_om(tmp_path, TOKENS), images={"x": None})


# -- whole models ---------------------------------------------------------------------------------


@pytest.fixture
def version_dir(tmp_path):
    folder = tmp_path / "encoder" / "1"
    write(ENCODER, "onnxruntime", folder)
    compile_om(folder, TOKENS)
    return folder


def configured(**parameters):
    return on_card(encoder_config({**ALLOWED, "limit.tokens": "32", **parameters}))


def test_it_is_refused_unless_config_pbtxt_allows_it(version_dir):
    reported = r"expected gears: .*; or, for a model of one file .*'unplanned_memory'"
    with pytest.raises(ArtifactFault, match=reported):
        Runtime.open(version_dir, on_card(encoder_config()), instance_name="encoder_0")


def test_ragged_batches_get_the_answers_of_the_onnx_engine(version_dir):
    rng = np.random.default_rng(3)
    texts = [rng.integers(0, len(TABLE), size) for size in (3, 32, 1, 20, 7, 8, 8, 31, 2, 16)]
    requests = [
        {"input_ids": text[None], "lengths": np.array([[len(text)]], np.int32)} for text in texts
    ]
    answers = {}
    for name, config in (("card", configured()), ("host", encoder_config({"limit.tokens": "32"}))):
        runtime = Runtime.open(version_dir, config, instance_name="encoder_0")
        answers[name] = runtime.infer(requests)
        runtime.close()
    for own, other in zip(answers["card"], answers["host"], strict=True):
        np.testing.assert_allclose(own["embedding"], other["embedding"], rtol=1e-5)


def test_log_metrics_and_inspect_report_unplanned_memory(version_dir, caplog):
    caplog.set_level(logging.INFO)
    runtime = Runtime.open(version_dir, configured(), instance_name="encoder_0")
    reported = [line for line in runtime.report if "not planned: " in line]
    assert reported[0].startswith(
        "encoder_0: not planned: model.om was compiled for ranges of sizes, not for gears"
    )
    assert runtime.gauges()["memory_unplanned"] == 1
    runtime.close()
    (version_dir.parent / "config.pbtxt").write_text(CONFIG)
    found = inspect(version_dir.parent)
    assert [f"encoder_0: not planned: {line}" for line in found.unplanned] == reported
    assert f"  not planned: {found.unplanned[0]}" in found.lines()
    assert not [line for line in found.lines() if "io_buffers" in line]
    assert found.as_json()["unplanned"] == [*found.unplanned]
    inspected = ChildResult(Outcome.DONE, {"engine": "om", "unplanned": "yes"})
    (finding,) = check_models([Model("encoder", frozenset({"npu"}), 1, 1, inspected)])
    assert finding.found == "om, needs npu; part of its memory is not planned"


def test_bench_reports_its_latency(version_dir, capsys):
    (version_dir.parent / "config.pbtxt").write_text(CONFIG)
    assert main(["bench", str(version_dir.parent), "--loop", "1", "--format", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert "latency" in json.dumps(shown)
    assert "NPU_compute_time" not in json.dumps(shown)


def test_limits_beyond_the_ranges_are_refused_at_load(version_dir):
    with pytest.raises(PlanFault, match=r"found sizes up to \[8, 64\], expected 1~8,1~32"):
        Runtime.open(version_dir, configured(**{"limit.tokens": "64"}), instance_name="encoder_0")


def test_gears_of_config_pbtxt_are_kept_to(version_dir):
    runtime = Runtime.open(
        version_dir, configured(**{"gears.batch,tokens": "4x8, 8x32"}), instance_name="encoder_0"
    )
    assert runtime.config.gears == {("batch", "tokens"): ((4, 8), (8, 32))}
    runtime.close()
