"""The torch engine on a GPU: on a fake of one, and where there is one on that."""

import gc
import logging
import os
import subprocess
import sys
import textwrap
from contextlib import ExitStack, closing, contextmanager

import numpy as np
import pytest
from runtime.engines.conformance_engine import EngineConformance, token_batch
from runtime.support.configs import encoder_config
from runtime.support.gpus import fake_gpu, real_gpu
from runtime.support.graphs import ENCODER, NONZERO, TABLE, copy_of

from ge_runtime import Runtime
from ge_runtime.cuda import CAPTURING
from ge_runtime.engines.artifact import Artifact
from ge_runtime.engines.backend import DeviceSettings, open_backend
from ge_runtime.errors import ArtifactFault, EngineLost, NoDevice, OutOfMemory, PlanFault
from ge_runtime.testing.conformance import check

torch = pytest.importorskip("torch", reason="the torch engine needs torch")

pytestmark = pytest.mark.brute_force

OUTPUTS = {"encoder": ["embedding"], "pixels": ["sums", "inverted"], "nonzero": ["where"]}
SIZES = [(1, 1), (8, 32)]


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.gpu)])
def gpu(request, monkeypatch):
    """The fake GPU's machine, or None on a real one."""
    if request.param == "real":
        return real_gpu("torch")
    return fake_gpu(monkeypatch)


@pytest.fixture
def fake(monkeypatch):
    return fake_gpu(monkeypatch)


@pytest.fixture
def backend():
    """A function: a backend on a GPU; closed at the end."""
    with ExitStack() as stack:

        def backend_on(device="cuda:0", **more):
            backend = open_backend(device, DeviceSettings(**more))
            stack.callback(backend.close)
            return backend

        yield backend_on


@pytest.fixture
def opened(version_dir, backend):
    """A function: the engine of a graph."""

    def open_(graph, threads=1, there=None):
        artifact = Artifact(version_dir(graph, "torch") / "model.pt2", "torch", "")
        outputs = OUTPUTS.get(graph.name, ["y"])
        return (there or backend()).open([artifact], threads=threads, outputs=outputs)

    return open_


def encoder_shapes(*sizes):
    return [dict.fromkeys(("input_ids", "attention_mask"), each) for each in sizes]


class OnGpu(EngineConformance):
    # On a GPU an index out of range takes the device from the process: see
    # test_failed_assertion_on_the_device_loses_it.
    test_failing_graph_is_a_fault_and_the_engine_stays_usable = None


@pytest.mark.usefixtures("gpu")
class TestExecutedStepByStep(OnGpu):
    pass


@pytest.mark.usefixtures("gpu")
class TestReplayed(OnGpu):
    @pytest.fixture
    def opened(self, opened):
        def bound(graph, threads=1):
            engine = opened(graph, threads)
            tensors = [tensor.name for tensor in engine.signature.inputs]
            known = {
                "encoder": encoder_shapes(*SIZES, (3, 5), (4, 9)),
                "pixels": [{"image": (2, 1, 4, 6), "mask": (2, 4, 6)}],
                "nonzero": [{"x": (4,)}],
            }
            engine.bind(known.get(graph.name, [dict.fromkeys(tensors, (2, 3))]), None)
            return engine

        return bound


def right(engine, rows, tokens, seed=0):
    inputs, expected = token_batch(rows, tokens, seed)
    planned = np.full_like(expected, np.nan)
    engine.run(inputs, {"embedding": planned})
    np.testing.assert_allclose(planned, expected, rtol=1e-5)
    return True


# -- recorded executions ------------------------------------------------------------------------


def test_executions_of_known_shapes_are_replayed_and_others_are_not(opened, fake):
    engine = opened(ENCODER)
    engine.bind(encoder_shapes((1, 8), (4, 8), (4, 32)), None)
    for turn, sizes in enumerate([(4, 8), (1, 8), (4, 32), (4, 8), (1, 8)], start=1):
        assert right(engine, *sizes, seed=turn)
        assert fake.replays == turn
    assert right(engine, 3, 5)
    assert fake.replays == 5


def test_no_thread_waits_for_the_whole_gpu_during_a_capture(opened, fake, monkeypatch):
    from torch_npu import npu

    found = []
    graph = npu.graph

    @contextmanager
    def watched(*given, capture_error_mode, **more):
        found.append((CAPTURING.locked(), capture_error_mode))
        with graph(*given, capture_error_mode=capture_error_mode, **more):
            yield

    monkeypatch.setattr(npu, "graph", watched)
    opened(ENCODER).bind(encoder_shapes((1, 8), (4, 8)), None)
    assert found == [(True, "thread_local")] * 2
    assert not CAPTURING.locked()


def test_replays_allocate_nothing_on_the_device(opened, gpu, backend):
    there = backend()
    engine = opened(ENCODER, there=there)
    engine.bind(encoder_shapes((1, 8), (4, 8), (4, 32)), None)
    assert right(engine, 4, 8)
    there.freeze()
    for turn in range(20):
        assert all(right(engine, *sizes, seed=turn) for sizes in [(4, 32), (1, 8), (4, 8)])
    assert there.memory.allocations_after_freeze == 0


def test_recordings_share_inputs_results_and_pool(opened, fake):
    from torch_npu import STATE

    def taken(*sizes):
        gc.collect()
        STATE.empty_cache()
        before = STATE.reserved[0]
        engine = opened(ENCODER)
        engine.bind(encoder_shapes(*sizes), None)
        return STATE.reserved[0] - before, engine

    largest, _one = taken((8, 32))
    together, _other = taken((8, 32), (8, 16), (4, 32), (1, 8))
    assert largest <= together < 1.5 * largest


def test_binding_again_records_again_and_gives_back_what_was_there(opened, fake):
    engine = opened(ENCODER)
    engine.bind(encoder_shapes((2, 3)), None)
    engine.bind(encoder_shapes((2, 4)), None)
    gc.collect()
    assert sorted(fake.graphs.values()) == [0, 1]
    assert right(engine, 2, 4)
    assert right(engine, 2, 3)
    assert fake.replays == 1


def test_graph_that_cannot_be_recorded_is_executed_and_named(opened, gpu, caplog):
    engine = opened(NONZERO)
    with caplog.at_level(logging.WARNING):
        engine.bind([{"x": (4,)}], None)
    (reported,) = [each.getMessage() for each in caplog.records if "ge_runtime" in each.name]
    assert reported.startswith(
        "cuda:0: executions of x [4] cannot be captured, and allocate while serving: CUDA error: "
    )
    x = np.array([0, 3, 0, 5], np.float32)
    assert engine.run({"x": x}, {"where": None})["where"].tolist() == [[1, 3]]


def test_executions_that_cannot_be_recorded_do_not_keep_others_from_it(opened, fake, caplog):
    engine = opened(ENCODER)
    execute = engine._module

    def waiting_at_some(input_ids, attention_mask):
        if fake.capture is not None and input_ids.shape[0] == 4:
            input_ids.sum().item()
        return execute(input_ids, attention_mask)

    engine._module = waiting_at_some
    engine.bind(encoder_shapes((4, 8), (2, 8), (1, 8)), None)
    (reported,) = [
        each.getMessage() for each in caplog.records if "cannot be captured" in each.message
    ]
    assert "executions of input_ids [4, 8], attention_mask [4, 8] cannot be" in reported
    gc.collect()
    engine.bind(encoder_shapes((2, 8), (1, 8)), None)
    assert all(right(engine, rows, 8) for rows in (1, 2, 4))
    assert fake.replays == 2


def test_engine_has_a_stream_to_itself_until_it_is_closed(opened, fake):
    first = opened(ENCODER)
    for _ in range(31):  # torch's own are 32
        torch.get_device_module("npu").Stream()
    second = opened(ENCODER)
    assert second._stream is not first._stream
    first.close()
    first.close()
    assert opened(ENCODER)._stream is first._stream
    assert opened(ENCODER)._stream not in (first._stream, second._stream)


def test_closed_engine_leaves_nothing_on_the_gpu(opened, fake):
    from torch_npu import STATE

    gc.collect()  # what tests before have left
    STATE.empty_cache()
    before = STATE.reserved[0]
    engine = opened(ENCODER)
    engine.bind(encoder_shapes((2, 3)), None)
    assert right(engine, 2, 3)
    assert STATE.reserved[0] > before
    engine.close()
    assert STATE.reserved[0] == before


# -- failures -----------------------------------------------------------------------------------


def test_gpu_that_is_full_is_out_of_memory_and_stays_usable(opened, fake):
    from torch_npu import STATE

    engine = opened(ENCODER)
    assert right(engine, 1, 1)
    STATE.capacity = STATE.reserved[0]
    with pytest.raises(OutOfMemory, match="cuda:0: torch: NPU out of memory"):
        right(engine, 8, 32)
    with pytest.raises(OutOfMemory, match="out of memory"):
        engine.bind(encoder_shapes((8, 32)), None)
    STATE.capacity = None
    assert right(engine, 8, 32)


def test_weights_that_do_not_fit_are_out_of_memory(opened, fake):
    from torch_npu import STATE

    STATE.capacity = 100
    with pytest.raises(OutOfMemory, match="out of memory"):
        opened(ENCODER)


def test_out_of_memory_during_a_capture_is_reported(opened, fake):
    engine = opened(ENCODER)
    execute = engine._module

    def short(*args, **kwargs):
        if fake.capture is not None:
            fake.capture.broken = True
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return execute(*args, **kwargs)

    engine._module = short
    with pytest.raises(OutOfMemory, match="cuda:0: torch: CUDA out of memory"):
        engine.bind(encoder_shapes((2, 3)), None)
    assert right(engine, 2, 3)


@pytest.mark.parametrize("bound", [True, False])
def test_failed_assertion_on_the_device_loses_it(opened, fake, bound):
    engine, other = opened(ENCODER), opened(copy_of(np.float32))
    if bound:
        engine.bind(encoder_shapes((2, 3)), None)
    inputs, _ = token_batch(2, 3)
    poison = {**inputs, "input_ids": np.full((2, 3), len(TABLE))}
    with pytest.raises(EngineLost, match="the GPU is lost to this process: cuCtxSynchronize: CUDA"):
        engine.run(poison, {"embedding": None})
    assert engine.lost
    assert other.lost
    with pytest.raises(EngineLost):
        other.run({"x": np.ones((2, 3), np.float32)}, {"y": None})
    with pytest.raises(EngineLost):
        other.bind([{"x": (2, 3)}], None)
    with pytest.raises(EngineLost):
        opened(ENCODER)
    engine.close()


@pytest.mark.gpu
@pytest.mark.slow
def test_failed_assertion_on_a_real_device_loses_it(version_dir):
    """Run in a separate process, because it breaks the GPU for the process."""
    real_gpu("torch")
    code = f"""
        from pathlib import Path
        import numpy as np
        from ge_runtime.engines.artifact import Artifact
        from ge_runtime.engines.backend import DeviceSettings, open_backend
        from ge_runtime.errors import EngineLost
        path = Path({str(version_dir(ENCODER, "torch") / "model.pt2")!r})
        backend = open_backend("cuda:0")
        engine = backend.open([Artifact(path, "torch", "")], threads=1, outputs=["embedding"])
        shape = dict.fromkeys(("input_ids", "attention_mask"), (2, 3))
        engine.bind([shape], backend.memory)
        given = {{name: np.full((2, 3), 16) for name in shape}}
        try:
            engine.run(given, {{"embedding": None}})
        except EngineLost:
            print("lost", engine.lost)
        engine.close()
        backend.close()
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stdout == "lost True\n", done.stderr


def test_stages_and_a_limit_of_workspace_are_refused(version_dir, backend, fake):
    artifact = Artifact(version_dir(ENCODER, "torch") / "model.pt2", "torch", "")
    with pytest.raises(ArtifactFault, match="expected one graph: stages are not"):
        backend().open([artifact, artifact], threads=1, outputs=["embedding"])
    with pytest.raises(PlanFault, match="found 'workspace_pool_mib', expected none with engine"):
        backend(workspace_bytes=2**20).open([artifact], threads=1, outputs=["embedding"])


# -- the runtime on it --------------------------------------------------------------------------

GEARED = {"gears.batch": "1, 4, 8", "gears.tokens": "8, 32"}
ON_GPU = {"devices": "cuda:0", "cost": "launch_us=100, element_ns=10, element2_ns=0"}


def runtime_of(folder, parameters):
    config = encoder_config({**ON_GPU, **parameters})
    return closing(Runtime.open(folder, config, instance_name="encoder_0"))


def test_no_answer_depends_on_its_company(version_dir, gpu):
    config = encoder_config({**ON_GPU, **GEARED})
    folder = version_dir(ENCODER, "torch")
    report = check(folder, config, ranges={"input_ids": (0, 16)}, rounds=3)
    assert report.passed, str(report)


def test_plan_has_the_devices_inputs_and_results_once(version_dir, gpu):
    with runtime_of(version_dir(ENCODER, "torch"), GEARED) as runtime:
        # Of 8 rows of 32 tokens, of which 4 numbers are the result.
        assert runtime.plan.device_io_bytes == 2 * 8 * 32 * 8 + 8 * 4 * 4
        (device, host) = runtime.memory_usage()
        assert (device["type"], host["type"]) == ("CUDA", "CPU_PINNED")
        assert device["byte_size"] + host["byte_size"] == runtime.plan.total_bytes
        assert runtime.gauges()["allocations_after_freeze"] == 0


def test_two_gpus_serve_one_window(version_dir, fake):
    from torch_npu import STATE

    devices = {"devices": "cuda:0, cuda:1", **GEARED}
    with runtime_of(version_dir(ENCODER, "torch"), devices) as runtime:
        assert "cuda:0 is fake of a GPU, cuda:1 is fake of a GPU" in runtime.report[1]
        tokens = {"input_ids": np.array([[1, 2]]), "lengths": np.array([[2]], np.int32)}
        answers = runtime.infer([tokens] * 16)
        assert all(answer["embedding"].shape == (1, 4) for answer in answers)
    assert STATE.allocations.keys() == {0, 1}


def test_graph_that_does_not_fit_is_a_fault_of_the_plan(version_dir, fake):
    from torch_npu import STATE

    STATE.capacity = 3000
    with pytest.raises(PlanFault, match="memory cannot be allocated: cuda:0: torch: NPU out of"):
        runtime_of(version_dir(ENCODER, "torch"), GEARED)


# -- where something is missing -----------------------------------------------------------------


def test_torch_without_cuda_is_reported_with_the_fix(version_dir, backend, fake, monkeypatch):
    from torch_npu import STATE

    there = backend()
    STATE.devices = 0
    artifact = Artifact(version_dir(ENCODER, "torch") / "model.pt2", "torch", "")
    with pytest.raises(NoDevice, match=r"which sees 0 GPU\(s\), expected more than 0: `pip un"):
        there.open([artifact], threads=1, outputs=["embedding"])
