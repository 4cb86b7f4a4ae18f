"""Several .om files as one engine on a simulated card: the stages of a pipeline."""

from contextlib import ExitStack

import numpy as np
import pytest
from runtime.support.ascend import compile_om, pinned
from runtime.support.pipelines import GEARS, STAGES, compile_stages, pipeline_batch, write_stages

from ge_runtime.devices import HostDevice
from ge_runtime.engines.artifact import Artifact, find_artifacts
from ge_runtime.engines.backend import open_engine
from ge_runtime.errors import ArtifactFault, EngineFault, EngineLost, OutOfMemory
from ge_runtime.npu.driver.cann_values import DriverFault
from ge_runtime.npu.driver.card import PROCESS_CARDS
from ge_runtime.npu.driver.pyacl import PyAclDriver
from ge_runtime.npu.engines.ascend_backend import AscendBackend

pytestmark = pytest.mark.brute_force


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """All stages, for GEARS, as .onnx and .om."""
    folder = tmp_path_factory.mktemp("pipeline")
    compile_stages(folder)
    return folder


@pytest.fixture
def opened():
    """A function: the chain of some stages on the card, ready to run; closed at the end."""
    with ExitStack() as stack:

        def open_chain(folder, stages=STAGES, asked=("scores",), *, bound=True, **options):
            place = AscendBackend(0, **options)
            stack.callback(place.close)
            paths = [Artifact(folder / f"{stage}.om", "om", "") for stage in stages]
            engine = place.open(paths, threads=1, outputs=asked)
            stack.callback(engine.close)
            if bound:
                engine.bind([], place.memory)
            engine.place = place
            return engine

        yield open_chain


@pytest.fixture
def chain(folder, opened):
    return opened(folder)


def right(engine, rows, tokens, *names, seed=0):
    names = names or ("scores",)
    inputs, expected = pipeline_batch(rows, tokens, seed)
    results = engine.run(inputs, dict.fromkeys(names))
    for name in names:
        np.testing.assert_allclose(results[name], expected[name], rtol=1e-5)
    return True


def moved(machine, work):
    """Return the calls of functions and the bytes copied by direction, during the work."""
    before = machine.report
    work()
    after = machine.report
    calls = {name: count - before.calls.get(name, 0) for name, count in after.calls.items()}
    copied = {
        kind: nbytes - before.copied_bytes.get(kind, 0)
        for kind, nbytes in after.copied_bytes.items()
    }
    return calls, copied


# -- answers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "tokens"), GEARS)
def test_answers_are_those_of_the_cpus_chain(chain, folder, rows, tokens):
    host = open_engine(*find_artifacts(folder, "auto", STAGES), threads=1, outputs=["scores"])
    host.bind(chain.shapes, HostDevice("cpu"))
    inputs, expected = pipeline_batch(rows, tokens)
    on_card, on_host = (engine.run(inputs, {"scores": None}) for engine in (chain, host))
    np.testing.assert_allclose(on_card["scores"], on_host["scores"], atol=1e-3, rtol=0)
    np.testing.assert_allclose(on_card["scores"], expected["scores"], rtol=1e-5)
    assert [t.name for t in chain.signature.inputs] == [t.name for t in host.signature.inputs]
    assert [str(t) for t in chain.signature.outputs] == [str(t) for t in host.signature.outputs]
    host.close()


def test_shapes_are_those_of_gears_that_all_stages_have(chain):
    assert chain.shapes == [{"input_ids": gear, "attention_mask": gear} for gear in GEARS]


def test_gears_that_one_stage_alone_has_are_left_out(opened, tmp_path):
    compile_stages(tmp_path, "embed", gears=[(1, 8), (2, 8), (4, 8)])
    compile_stages(tmp_path, "pool", gears=[(4, 8), (1, 8), (4, 64)])
    engine = opened(tmp_path, ("embed", "pool"), ("pooled",))
    assert [own["input_ids"] for own in engine.shapes] == [(1, 8), (4, 8)]
    assert right(engine, 4, 8, "pooled")
    with pytest.raises(EngineFault, match=r"found inputs input_ids \[2, 8\], .* of a gear: input"):
        right(engine, 2, 8, "pooled")


def test_a_later_stage_may_have_inputs_and_gears_of_its_own(opened, tmp_path):
    compile_stages(tmp_path, "head", gears=[(1, 8), (4, 8)])
    compile_stages(tmp_path, "pool", gears=[(1, 8), (4, 8), (4, 32)])
    engine = opened(tmp_path, ("pool", "head"), ("logits",))
    assert [t.name for t in engine.signature.inputs] == ["hidden", "attention_mask"]
    assert [own["hidden"] for own in engine.shapes] == [(1, 8), (4, 8), (4, 32)]
    inputs, expected = pipeline_batch(4, 32)
    given = {"hidden": expected["hidden"], "attention_mask": inputs["attention_mask"]}
    found = engine.run(given, {"logits": None})["logits"]
    np.testing.assert_allclose(found, expected["logits"], rtol=1e-5)


# -- what crosses the bus -------------------------------------------------------------------------


def test_nothing_between_stages_crosses_to_the_host(chain, machine):
    inputs, _ = pipeline_batch(4, 8)
    given = {name: pinned(chain.place, array) for name, array in inputs.items()}
    target = pinned(chain.place, np.empty((4, 3), np.float32))
    calls, copied = moved(machine, lambda: chain.run(given, {"scores": target}))
    assert calls["rt.memcpy_async"] == 3  # the mask, too, once for its two stages
    assert calls.get("rt.memcpy", 0) == 0
    assert calls["mdl.execute_async"] == 4
    assert calls["rt.synchronize_stream_with_timeout"] == 1
    assert copied["ACL_MEMCPY_DEVICE_TO_HOST"] == target.nbytes
    gears = 4 * 8 + 4 * 8 + 8 + 8  # written by the driver, 8 bytes for each value
    sent = copied["ACL_MEMCPY_HOST_TO_DEVICE"] - sum(array.nbytes for array in given.values())
    assert 0 <= sent <= gears


def test_only_stages_that_are_needed_are_executed_and_only_their_inputs_copied(
    folder, opened, machine
):
    engine = opened(folder, asked=("pooled", "scores"))
    calls, _ = moved(machine, lambda: right(engine, 4, 8, "pooled"))
    assert calls["mdl.execute_async"] == 2
    engine = opened(folder, ("head", "embed"), ("logits", "hidden"))
    given = {"pooled": np.ones((4, 1), np.float32)}
    given |= pipeline_batch(4, 8)[0]
    calls, _ = moved(machine, lambda: engine.run(given, {"logits": None}))
    assert calls["mdl.execute_async"] == 1
    assert calls["rt.memcpy"] == 2
    assert engine.run(given, {}) == {}


def test_a_tensor_between_stages_can_be_requested(folder, opened):
    engine = opened(folder, asked=("hidden", "pooled", "scores"))
    for rows, tokens in GEARS:
        assert right(engine, rows, tokens, "scores", "hidden", "pooled", seed=rows)


def test_a_result_whose_bytes_may_be_anothers_is_refused_before_anything_runs(chain, machine):
    with pytest.raises(EngineFault, match="output 'hidden': found a tensor between stages"):
        right(chain, 4, 8, "hidden")
    assert machine.report.executions == 0


# -- memory ---------------------------------------------------------------------------------------


def test_tensors_share_bytes_where_no_stage_needs_both(chain, folder, opened):
    """Results are equal; test_memory.py checks that tensors do not overlap."""
    every = [*chain.signature.inputs, *chain.signature.outputs]
    apart = opened(folder, asked=[tensor.name for tensor in every])
    assert chain.device_io_bytes() < apart.device_io_bytes()
    assert all(right(chain, *gear) for gear in GEARS)


def test_places_are_as_large_as_the_stage_that_wants_most(opened, tmp_path, machine):
    compile_stages(tmp_path, "embed", gears=[(1, 8), (4, 8)])
    compile_stages(tmp_path, "pool", gears=[(4, 8), (1, 8), (64, 64)])
    engine = opened(tmp_path, ("embed", "pool"), ("pooled",))
    assert engine.device_io_bytes() > 64 * 64 * (4 + 8)
    assert right(engine, 4, 8, "pooled")


def test_workspace_is_the_largest_and_weights_are_all_of_them(chain):
    memory = PROCESS_CARDS._open[0].memory.allocated_bytes
    models = PROCESS_CARDS._open[0]._executors[0].models._models.values()
    (workspace,) = chain.intermediates({}).lifetimes
    assert len(models) == 4
    assert workspace.nbytes == max(model.file.workspace_bytes for model in models)
    assert memory["workspace"] == workspace.nbytes
    assert chain.weights_bytes() == sum(model.file.weights_bytes for model in models)
    assert memory["weights"] == sum(max(1, model.file.weights_bytes) for model in models)


def test_chains_share_the_models_of_files_that_are_equal(folder, opened, machine):
    first = opened(folder)
    loads = machine.report.calls["mdl.load_from_file_with_mem"]
    second = opened(folder, STAGES[1:])
    assert machine.report.calls["mdl.load_from_file_with_mem"] == loads == 4
    first.close()
    assert machine.report.calls["mdl.unload"] == 1
    inputs, expected = pipeline_batch(4, 32)
    given = {"hidden": expected["hidden"], "attention_mask": inputs["attention_mask"]}
    found = second.run(given, {"scores": None})["scores"]
    np.testing.assert_allclose(found, expected["scores"], rtol=1e-5)


# -- what does not fit ----------------------------------------------------------------------------


def test_gears_that_do_not_join_are_refused_with_both_lists_and_the_cure(opened, tmp_path, machine):
    compile_stages(tmp_path, "embed", gears=[(1, 8), (2, 8)])
    compile_stages(tmp_path, "pool", gears=[(4, 8), (1, 16)])
    with pytest.raises(ArtifactFault) as raised:
        opened(tmp_path, ("embed", "pool"), ("pooled",))
    assert str(raised.value) == (
        "the stages embed, pool do not fit together: stage 'pool': found gears for "
        "hidden [1, 16], attention_mask [1, 16]; hidden [4, 8], attention_mask [4, 8], expected "
        "a gear of earlier stages: hidden [1, 8], attention_mask [1, 8]; hidden [2, 8], "
        "attention_mask [2, 8]; `ge-runtime build` compiles all stages for the same gears"
    )
    assert machine.used("device") == 0


def test_stages_that_disagree_are_reported_and_unloaded(folder, opened, tmp_path, machine):
    with pytest.raises(ArtifactFault, match=r"the stages head, pool do not fit together") as raised:
        opened(folder, ("head", "pool"), ("pooled", "logits"))
    assert "output 'pooled': found the name of an input of stage 'head', which" in str(raised.value)
    with pytest.raises(ArtifactFault, match="stage 'embed': found outputs hidden, expected one th"):
        opened(folder, ("embed", "head"), ("logits",))
    assert machine.used("device") == 0


def test_all_files_that_cannot_be_read_are_reported(folder, opened, tmp_path):
    write_stages(tmp_path, "embed", "pool")
    (tmp_path / "embed.om").write_bytes(b"no model")
    compile_om(
        tmp_path, "--input_shape=hidden:-1,-1;attention_mask:-1,-1", name="pool", source="pool"
    )
    with pytest.raises(ArtifactFault) as raised:
        opened(tmp_path, ("embed", "pool", "head"), ("logits",))
    reported = str(raised.value).splitlines()
    assert [line.partition(":")[0] for line in reported] == [
        str(tmp_path / f"{stage}.om") for stage in ("embed", "pool", "head")
    ]
    assert "`ge-runtime build` compiles it from embed.onnx" in reported[0]
    assert "a model with free shapes" in reported[1]
    assert "No such file" in reported[2]


def test_stages_of_other_engines_are_refused(folder):
    place = AscendBackend(0)
    for engine, suffix in {"ge_session": "air", "torch": "pt2"}.items():
        artifacts = [
            Artifact(folder / "embed.om", "om", ""),
            Artifact(folder / f"pool.{suffix}", engine, ""),
        ]
        found = rf"npu:0: found the stages embed.om, pool.{suffix}"
        reported = rf"{found}, expected one graph, or only .om files"
        with pytest.raises(ArtifactFault, match=reported):
            place.open(artifacts, threads=1, outputs=["pooled"])
    place.close()


# -- failures -------------------------------------------------------------------------------------


@pytest.mark.parametrize("nth", range(1, 5))
def test_a_load_that_fails_half_way_leaves_nothing_behind(folder, opened, machine, nth):
    machine.arm(f"load@{nth}=500002")
    with pytest.raises(ArtifactFault, match=rf"{STAGES[nth - 1]}.om: npu:0, .* 500002"):
        opened(folder)
    assert machine.used("device") == 0
    assert PROCESS_CARDS._open[0].weights._shared == {}
    assert right(opened(folder), 4, 8)


def test_a_card_that_cannot_undo_a_load_is_lost_with_the_memory_that_it_may_use(
    folder, opened, machine, monkeypatch
):
    def refuse(driver, model):
        raise DriverFault("acl.mdl.unload", 500002)

    machine.arm("load@3=500002")
    monkeypatch.setattr(PyAclDriver, "unload", refuse)
    with pytest.raises(ArtifactFault, match=r"head\.om: npu:0, .* 500002"):
        opened(folder)
    assert "releasing resources failed: acl.mdl.unload" in str(PROCESS_CARDS.health(0).lost)
    # The third stage's weights; of the others the buffers that they were asked for gears with.
    assert machine.report.calls["rt.free"] == 3
    with pytest.raises(EngineLost):
        opened(folder)


@pytest.mark.parametrize("nth", range(1, 6))
def test_a_card_without_room_is_reported_and_left_as_it_was(folder, opened, machine, nth):
    other = opened(folder, ("head",), ("logits",))
    used, models = machine.used("device"), len(machine.report.live)
    machine.arm(f"malloc@{nth}=207001")
    with pytest.raises(OutOfMemory):
        opened(folder, ("embed", "pool"), ("pooled",))
    card = PROCESS_CARDS._open[0]
    assert len(card.weights._shared) == len(card._executors[0].models._models) == 1
    assert machine.used("device") - card._executors[0].models.workspace_bytes <= used
    assert len(machine.report.live) >= models
    given = {"pooled": np.ones((4, 1), np.float32)}
    assert other.run(given, {"logits": None})["logits"].tolist() == [[1, -2, 3]] * 4


def test_a_failure_reported_by_the_wait_names_all_stages(chain, folder, machine):
    machine.arm("execute@2=507011")
    files = f"{folder.parts[-2]}/{folder.name}/embed.om, pool.om, head.om, scale.om"
    with pytest.raises(EngineFault) as raised:
        right(chain, 4, 8)
    assert str(raised.value).startswith(f"lane 0 of npu:0: {files}: acl.rt.synchronize_stream")
    loads = machine.report.calls["mdl.load_from_file_with_mem"]
    assert right(chain, 8, 32)
    assert machine.report.calls["mdl.load_from_file_with_mem"] == loads + 4


@pytest.mark.parametrize("stage", [0, 3])
@pytest.mark.parametrize("function", ["execute_async", "set_gear"])
def test_a_failure_of_a_stages_own_call_names_it(chain, monkeypatch, stage, function):
    driver = chain._card.driver
    call, calls = getattr(driver, function), iter(range(4))

    def fail_once(*args):
        if next(calls, None) == stage:
            raise DriverFault(function, 500002)
        call(*args)

    monkeypatch.setattr(driver, function, fail_once)
    with pytest.raises(EngineFault, match=rf"/{STAGES[stage]}\.om: {function}: 500002"):
        right(chain, 4, 8)
    assert right(chain, 4, 8)


def test_a_full_queue_is_tried_once_more_from_the_first_stage(chain, monkeypatch, machine):
    module = chain._card.driver._mdl
    execute, codes = module.execute_async, [0, 0, 507002]

    def full_once(*args):
        return codes.pop(0) or execute(*args) if codes else execute(*args)

    monkeypatch.setattr(module, "execute_async", full_once)
    assert right(chain, 4, 8)
    assert machine.report.executions == 2 + 4


def test_a_larger_chain_has_all_stages_of_the_smaller_one_loaded_again(
    folder, opened, tmp_path, machine
):
    small = opened(folder)
    compile_stages(tmp_path, "embed", "pool", gears=[(1, 8), (64, 4096)])
    large = opened(tmp_path, ("embed", "pool"), ("pooled",))
    assert right(large, 64, 4096, "pooled")
    assert all(right(small, *gear) for gear in GEARS)
