"""Whole models on a simulated card: the runtime, its plan and its proof of sound answers."""

import json
import re
import sys

import numpy as np
import pytest
from runtime.npu.driver.conftest import GEARS
from runtime.support.ascend import compile_om, token_gears
from runtime.support.configs import encoder_config
from runtime.support.graphs import ENCODER, TABLE, encode, write
from runtime.support.pipelines import SCORES, WEIGHTS, compile_stages
from runtime.support.triton import InferenceRequest, PbUtils, Tensor, TritonError
from runtime.testing.models import SOUND, TOKENS, UNFORESEEN

from ge_runtime import ArtifactFault, ConfigFault, EngineLost, PlanFault, Runtime
from ge_runtime.adapters.triton import GraphModel
from ge_runtime.cli.build import shape_flags
from ge_runtime.config import RuntimeConfig
from ge_runtime.engines.gearing import with_compiled_gears
from ge_runtime.errors import NoDevice
from ge_runtime.npu.driver.card import PROCESS_CARDS
from ge_runtime.npu.driver.pyacl import open_driver
from ge_runtime.testing.conformance import check

pytestmark = pytest.mark.brute_force

COST = "launch_us=100, element_ns=100, element2_ns=0"


def on_card(config, **parameters):
    """The configuration for devices that are cards."""
    entries = dict(config["parameters"])
    devices = entries.get("devices", {"string_value": "cpu"})["string_value"]
    entries["devices"] = {"string_value": devices.replace("cpu", "npu:0")}
    entries.setdefault("cost", {"string_value": COST})
    entries.update({key: {"string_value": text} for key, text in parameters.items()})
    return {**config, "parameters": entries}


def compiled(model, folder):
    """The model's folder with model.om for the gears of its configuration."""
    write(model.graph, "onnxruntime", folder)
    config = RuntimeConfig.parse(on_card(model.config), cores=1)
    flags, _ = shape_flags(folder, folder, config)
    compile_om(folder, *flags["model"].flags)
    return folder


def of_fixed_sizes(model):
    parameters = model.config["parameters"]
    return model.graph not in (TOKENS.graph, UNFORESEEN.graph) and parameters.get("oversize") != {
        "string_value": "fallback"
    }


@pytest.mark.parametrize("model", [m for m in SOUND if of_fixed_sizes(m)], ids=str)
def test_sound_models_pass(model, tmp_path):
    report = check(compiled(model, tmp_path), on_card(model.config), rounds=6)
    assert report.passed, str(report)


@pytest.fixture
def opened(encoder_dir):
    """A function: the encoder, opened with parameters; closed at the end."""
    runtimes = []

    def open_runtime(parameters=None, folder=encoder_dir, **more):
        config = on_card(encoder_config(parameters, **more))
        runtimes.append(Runtime.open(folder, config, instance_name="encoder_0"))
        return runtimes[-1]

    yield open_runtime
    for runtime in runtimes:
        runtime.close()


def text(*tokens):
    return {"input_ids": np.array([tokens]), "lengths": np.array([[len(tokens)]], np.int32)}


def right(runtime, lengths=(3, 7, 8, 20, 32), seed=0):
    rng = np.random.default_rng(seed)
    texts = [rng.integers(0, len(TABLE), length) for length in lengths]
    answers = runtime.infer([text(*tokens) for tokens in texts])
    for tokens, answer in zip(texts, answers, strict=True):
        np.testing.assert_allclose(answer["embedding"], encode([tokens]), rtol=1e-5)
    return True


# -- gears of the file ----------------------------------------------------------------------------


def test_gears_that_config_leaves_open_are_those_of_the_file(opened):
    runtime = opened()
    assert runtime.config.gears == {("batch", "tokens"): tuple(GEARS)}
    assert right(runtime)


def test_config_may_name_fewer_gears(opened):
    runtime = opened({"gears.batch,tokens": "8x32, 4x8"})
    assert runtime.config.gears == {("batch", "tokens"): ((4, 8), (8, 32))}
    assert right(runtime)
    runtime = opened({"gears.tokens": "32"})
    assert runtime.config.gears == {("batch", "tokens"): ((4, 32), (8, 32))}
    assert right(runtime)


@pytest.mark.parametrize(
    ("parameters", "missing"),
    [
        ({"gears.tokens": "16, 32"}, "no gear 16 for tokens"),
        ({"gears.batch,tokens": "8x32, 2x32"}, "no gear 2x32 for batch, tokens"),
        ({"gears.batch": "1, 8", "gears.tokens": "8, 32"}, "no gear 1x32, 8x8 for batch, tokens"),
    ],
)
def test_gears_that_the_file_lacks_are_refused_with_both_lists(opened, parameters, missing):
    with pytest.raises(ArtifactFault) as raised:
        opened(parameters)
    assert f"model.om: found {missing}, expected all that config.pbtxt names" in str(raised.value)
    assert "it was compiled for " in str(raised.value)


def test_gears_in_which_an_axis_has_two_sizes_are_nobodys():
    """Separate stages have such gears, as each gear is combined with those of other stages."""
    config = RuntimeConfig.parse(on_card(encoder_config()), cores=1)
    uneven = {"input_ids": (1, 16), "attention_mask": (1, 8)}
    even = [{"input_ids": gear, "attention_mask": gear} for gear in ((1, 8), (8, 32))]
    found = with_compiled_gears(config, [even[0], uneven, even[1]], "model.om")
    assert found.gears == {("batch", "tokens"): ((1, 8), (8, 32))}
    with pytest.raises(
        ArtifactFault, match=r"^model\.om: found no gear whose inputs agree in size"
    ):
        with_compiled_gears(config, [uneven], "model.om")


def test_a_limit_that_no_gear_holds_is_refused(opened):
    with pytest.raises(ArtifactFault, match="found no gear that holds tokens 64, expected one"):
        opened({"limit.tokens": "64"})


def test_oversize_fallback_needs_free_sizes(opened):
    with pytest.raises(ArtifactFault, match=r"'oversize': found .*model\.om, which was compiled"):
        opened({"oversize": "fallback"})


# -- stages ---------------------------------------------------------------------------------------


@pytest.fixture
def pipeline(opened, tmp_path):
    """A function: the pipeline's stages as one model, opened with parameters."""
    compile_stages(tmp_path)

    def open_pipeline(parameters=None):
        stages = {"stages": "embed, pool, head, scale"}
        return opened(stages | (parameters or {}), folder=tmp_path, output=[SCORES])

    return open_pipeline


def scored(runtime, lengths=(3, 7, 8, 20, 32), seed=0):
    rng = np.random.default_rng(seed)
    rows = [rng.integers(0, 50, length) for length in lengths]
    answers = runtime.infer([text(*tokens) for tokens in rows])
    for tokens, answer in zip(rows, answers, strict=True):
        expected = 2 * tokens.mean(dtype=np.float32) * WEIGHTS
        np.testing.assert_allclose(answer["scores"], expected, rtol=1e-5)
    return True


def test_a_pipeline_is_planned_and_served_as_one_model(pipeline, machine):
    runtime = pipeline()
    assert runtime.config.gears == {("batch", "tokens"): tuple(GEARS)}
    report = "\n".join(runtime.report)
    for stage in ("embed", "pool", "head", "scale"):
        assert f"engine om, because {stage}.om is there and acl is installed" in report
    plan = runtime.plan
    card = PROCESS_CARDS._open[0].memory.allocated_bytes
    assert card["workspace"] == plan.workspace_bytes
    assert machine.used("device") == sum(card.values()) + plan.device_io_bytes
    before = machine.report
    assert all(scored(runtime, seed=seed) for seed in range(5))
    after = machine.report
    assert after.mallocs == before.mallocs
    assert "rt.memcpy" not in after.calls
    assert runtime.gauges()["allocations_after_freeze"] == 0


def test_a_gear_that_one_stage_lacks_is_refused_with_all_files(pipeline):
    with pytest.raises(ArtifactFault) as raised:
        pipeline({"gears.tokens": "16, 32"})
    assert "/embed.om, pool.om, head.om, scale.om: found no gear 16 for tokens" in str(raised.value)


# -- memory ---------------------------------------------------------------------------------------


def test_report_and_plan_say_what_lies_where(opened):
    runtime = opened()
    report = "\n".join(runtime.report)
    assert "engine om, because model.om is there and acl is installed" in report
    assert "npu:0 is AscendSimulator" in report
    assert re.search(r"device I/O +4,480 .* on the device; inputs and answers are pinned", report)
    plan = runtime.plan
    assert plan.total_bytes == (
        plan.weights_bytes + plan.workspace_bytes + plan.device_io_bytes + plan.io_bytes
    )
    assert runtime.memory_usage() == [
        {"type": "NPU", "id": 0, "byte_size": plan.total_bytes - plan.io_bytes},
        {"type": "CPU_PINNED", "id": 0, "byte_size": plan.io_bytes},
    ]
    gauges = runtime.gauges()
    parts = ("weights_bytes", "workspace_bytes", "io_bytes")
    assert sum(gauges[part] for part in parts) == gauges["total_bytes"]


def test_memory_is_reported_for_its_card(opened, machine):
    machine.start(devices=2)
    runtime = opened({"devices": "npu:1"})
    assert [(own["type"], own["id"]) for own in runtime.memory_usage()] == [
        ("NPU", 1),
        ("CPU_PINNED", 1),
    ]


def test_instances_cost_weights_once_and_the_largest_workspace(opened, machine, tmp_path):
    write(ENCODER, "onnxruntime", tmp_path)
    compile_om(tmp_path, *token_gears((64, 1024), (8, 4096)))
    small = [opened() for _ in range(3)]
    large = opened({"limit.tokens": "1024"}, folder=tmp_path, batch=64)
    runtimes = [*small, large]
    assert PROCESS_CARDS._open[0].memory.allocated_bytes == {
        "weights": 2 * 1536,
        "workspace": max(runtime.plan.workspace_bytes for runtime in runtimes),
    }
    own = sum(runtime.plan.device_io_bytes for runtime in runtimes)
    assert machine.used("device") == own + PROCESS_CARDS._open[0].memory.used_bytes
    assert all(right(runtime, seed=seed) for seed, runtime in enumerate(runtimes))


def test_device_and_pinned_memory_come_back_when_the_runtime_closes(opened, machine):
    runtime = opened()
    (answer,) = runtime.infer([text(1, 2, 3)])
    runtime.close()
    assert machine.used("device") == 0
    assert machine.used("pinned") == 576  # the slot that the answer is a view of
    np.testing.assert_allclose(answer["embedding"], encode([[1, 2, 3]]), rtol=1e-5)
    del answer
    opened().close()
    assert machine.used("pinned") == 0


def test_a_pool_is_the_size_of_a_lane_s_workspace(opened, machine):
    runtime = opened({"workspace_pool_mib": "4"})
    assert PROCESS_CARDS._open[0].memory.allocated_bytes["workspace"] == 4 * 2**20
    assert right(runtime)
    with pytest.raises(PlanFault, match="'workspace_pool_mib': found 8, expected 4"):
        opened({"workspace_pool_mib": "8"})
    runtime.close()
    with pytest.raises(PlanFault, match="expected at most 1,048,576, which the parameter"):
        opened({"workspace_pool_mib": "1"})


def test_a_card_without_room_for_inputs_is_reported_with_the_plan(opened, machine):
    machine.arm("malloc@4=207001")
    with pytest.raises(PlanFault, match=r"(?s)planned memory cannot be allocated.*device I/O"):
        opened()
    assert machine.report.live == []


def test_two_entries_of_one_card_are_two_lanes(opened, machine):
    runtime = opened({"devices": "npu:0, npu:0"})
    assert machine.report.calls["mdl.load_from_file_with_mem"] == 2
    assert right(runtime)


# -- failures -------------------------------------------------------------------------------------


def test_a_failed_launch_is_executed_again_in_halves_on_a_lane_reset(opened, machine):
    runtime = opened()
    machine.arm("execute@1=507011")
    assert right(runtime, (5, 6))
    assert runtime.counts().isolations == 1
    assert runtime.is_ready()


def test_a_lost_card_is_reported_with_the_cure_and_logged_once(encoder_dir, machine, caplog):
    pb_utils = PbUtils()
    config = on_card(encoder_config(), engine="om")
    args = {
        "model_config": json.dumps(config),
        "model_instance_name": "encoder_0",
        "model_repository": str(encoder_dir.parent),
        "model_version": encoder_dir.name,
        "model_name": "encoder",
    }
    model = GraphModel(args, pb_utils)
    pb_utils.Logger.lines.clear()
    machine.arm("execute@1=507010")
    tensors = [Tensor(name, array) for name, array in text(1, 2, 3).items()]
    answers = [model.execute([InferenceRequest(tensors, ["embedding"])]) for _ in range(3)]
    model.close()
    errors = [answer.error() for (answer,) in answers]
    assert {error.code() for error in errors} == {TritonError.UNAVAILABLE}
    (message,) = {error.message() for error in errors}
    assert message.endswith(
        "; the process has to be restarted, which a device service does by itself"
    )
    assert pb_utils.Logger.lines == [("error", f"encoder_0: {message}")]
    assert caplog.messages == [message]


def test_a_card_lost_by_a_neighbour_makes_the_runtime_not_ready_at_once(opened, machine):
    runtime, neighbour = opened(), opened()
    machine.arm("execute@1=507010")
    (met,) = neighbour.infer([text(1, 2)])
    assert isinstance(met, EngineLost)
    assert not runtime.is_ready()
    (reported,) = runtime.infer([text(3)])
    assert isinstance(reported, EngineLost)
    assert str(reported) == str(met)


def test_a_missing_interface_is_reported_with_its_cure(monkeypatch):
    monkeypatch.setitem(sys.modules, "acl", None)
    open_driver.cache_clear()
    with pytest.raises(NoDevice, match=r"found no module `acl`.*run `source .*set_env.sh`"):
        PROCESS_CARDS.acquire(0)


def test_an_encoder_that_does_not_fit_is_a_fault_of_the_plan(opened, machine):
    machine.start(hbm_mib=1)
    with pytest.raises(
        PlanFault, match=r"the graph does not fit: /.*/model\.om: found 1,077,760 more .* on npu:0;"
    ):
        opened()


def test_devices_of_two_kinds_and_engines_of_the_other_are_refused():
    for parameters, fault in [
        ({"devices": "cpu, npu:0"}, "parameter 'devices': found cpu and npu, expected devices of"),
        (
            {"devices": "npu:0", "engine": "onnxruntime"},
            "found engine onnxruntime for devices npu:0",
        ),
        ({"engine": "om"}, "found engine om for devices cpu, expected devices: cards, e.g. npu:0"),
        ({"engine": "ge_session"}, "found engine ge_session for devices cpu, expected devices: ca"),
    ]:
        with pytest.raises(ConfigFault, match=fault):
            RuntimeConfig.parse(encoder_config(parameters), cores=1)
