"""The torch engine on a card, on fakes of torch_npu and torchair."""

import logging
import os
import subprocess
import sys
import textwrap
from contextlib import ExitStack, closing

import numpy as np
import pytest
from runtime.engines.conformance_engine import EngineConformance, token_batch
from runtime.support.configs import encoder_config
from runtime.support.fakes import FAKES
from runtime.support.graphs import ENCODER, copy_of

import ge_runtime.npu.engines.torch_npu as torch_engine
from ge_runtime import Runtime
from ge_runtime.engines.artifact import Artifact
from ge_runtime.engines.base import Limited
from ge_runtime.errors import (
    ArtifactFault,
    ConfigFault,
    EngineFault,
    EngineLost,
    NoDevice,
    OutOfMemory,
    PlanFault,
)
from ge_runtime.npu.driver.card import PROCESS_CARDS
from ge_runtime.npu.engines.ascend_backend import AscendBackend
from ge_runtime.npu.engines.torch_npu import TorchNpuBackend

pytest.importorskip("torch", reason="the torch engine needs torch")

pytestmark = pytest.mark.brute_force

LOST, EXHAUSTED, FAILED = 507899, 207001, 507015
"""Return codes of CANN: no device any more, no memory, a failed computation."""


@pytest.fixture(autouse=True)
def state(monkeypatch):
    """The fake machine: two cards, nothing allocated."""
    monkeypatch.syspath_prepend(FAKES)
    import torch_npu

    torch_npu.STATE.reset()
    monkeypatch.setattr(torch_engine, "_CARD_OF_PROCESS", [])
    yield torch_npu.STATE
    PROCESS_CARDS.__init__()


@pytest.fixture
def capture(state):
    """The compiler npugraph_ex."""
    import torch_npu

    torch_npu.register_capture()
    return "npugraph_ex"


@pytest.fixture
def backend():
    """A function: a backend on a card; closed at the end."""
    with ExitStack() as stack:

        def backend_on(device=0, compiler="ge", **options):
            backend = TorchNpuBackend(device, options, compiler)
            stack.callback(backend.close)
            return backend

        yield backend_on


def open_at(backend, path, outputs=("y",)):
    return backend.open([Artifact(path, "torch", "")], threads=1, outputs=outputs)


class TestTorchNpuEngine(EngineConformance):
    @pytest.fixture
    def opened(self, version_dir, backend):
        return lambda graph, threads=1: open_at(
            backend(), version_dir(graph, "torch") / "model.pt2"
        )


@pytest.fixture
def encoder(version_dir, backend):
    there = backend()
    engine = open_at(there, version_dir(ENCODER, "torch") / "model.pt2")
    engine.backend = there
    return engine


def right(engine, rows, tokens):
    inputs, expected = token_batch(rows, tokens)
    result = engine.run(inputs, {"embedding": None})["embedding"]
    np.testing.assert_allclose(result, expected, rtol=1e-5)
    return True


# -- compiling ----------------------------------------------------------------------------------


def test_each_set_of_shapes_is_compiled_once(encoder, state):
    import torch._dynamo.config

    with torch._dynamo.config.patch(recompile_limit=1):  # for each function
        for _ in range(2):
            assert all(right(encoder, rows, 4) for rows in (1, 2, 3))
    # The compiler is given the weights, too.
    assert [shapes[0] for shapes in state.compiled] == [(1, 4), (2, 4), (3, 4)]


def test_options_of_ge_become_fields_of_the_compilers_configuration(version_dir, backend):
    path = version_dir(copy_of(np.float32), "torch") / "model.pt2"
    there = backend(**{"ge.aicoreNum": "24", "ge.enableSingleStream": "true"})
    x = np.ones((2, 3), np.float32)
    assert open_at(there, path).run({"x": x}, {"y": None})["y"].tolist() == x.tolist()
    with pytest.raises(ArtifactFault, match=r"found option ge\.externalWeight for engine torch"):
        open_at(backend(**{"ge.externalWeight": "1"}), path)


def test_npugraph_ex_captures_each_set_of_shapes_once(version_dir, backend, state, capture):
    engine = open_at(backend(compiler=capture), version_dir(ENCODER, "torch") / "model.pt2")
    for _ in range(2):
        assert all(right(engine, rows, 4) for rows in (1, 8))
    assert [shapes[0] for shapes in state.captured] == [(rows, 4) for rows in (1, 8)]
    assert state.compiled == []
    assert "also for each capture" in engine.unplanned[0]


def test_npugraph_ex_takes_no_options_of_ge(version_dir, backend, capture):
    path = version_dir(copy_of(np.float32), "torch") / "model.pt2"
    with pytest.raises(ArtifactFault, match=r"found option ge\.aicoreNum for torch_compiler npu"):
        open_at(backend(compiler=capture, **{"ge.aicoreNum": "24"}), path)


def test_a_torch_npu_without_npugraph_ex_is_reported(backend, monkeypatch):
    import torch

    monkeypatch.setattr(torch._dynamo, "list_backends", lambda exclude_tags=(): ["inductor"])
    with pytest.raises(NoDevice, match=r"found a torch_npu without npugraph_ex, expected 7\.3\.0"):
        backend(compiler="npugraph_ex")


def test_stages_are_refused(version_dir, backend):
    artifact = Artifact(version_dir(ENCODER, "torch") / "model.pt2", "torch", "")
    with pytest.raises(ArtifactFault, match=r"expected one graph, or only \.om files"):
        backend().open([artifact, artifact], threads=1, outputs=["embedding"])


# -- memory -------------------------------------------------------------------------------------


def test_allocations_of_torch_while_serving_are_counted_and_logged_once(encoder, state, caplog):
    memory = encoder.backend.memory
    assert right(encoder, 2, 4)
    encoder.backend.freeze()
    assert all(right(encoder, 2, 4) for _ in range(20))
    assert memory.allocations_after_freeze == 0
    before = state.allocations[0]
    with caplog.at_level(logging.WARNING):
        assert right(encoder, 8, 32)
        late = memory.allocations_after_freeze
        assert 0 < late == state.allocations[0] - before
        assert memory.allocations_after_freeze == late
    (reported,) = [each.getMessage() for each in caplog.records if "ge_runtime" in each.name]
    assert reported.startswith(f"npu:0: torch's allocator allocated memory {late} time(s)")


def test_weights_and_batches_are_on_the_card_that_is_named(version_dir, backend, state):
    engine = open_at(backend(1), version_dir(ENCODER, "torch") / "model.pt2")
    assert right(engine, 2, 4)
    assert state.allocations.keys() == {1}


def test_a_card_that_is_full_is_out_of_memory(encoder, state):
    assert right(encoder, 1, 1)
    state.capacity = state.reserved[0]
    with pytest.raises(OutOfMemory, match="NPU out of memory"):
        right(encoder, 8, 32)
    state.capacity = None
    assert right(encoder, 8, 32)


def test_weights_that_do_not_fit_are_out_of_memory(version_dir, backend, state):
    state.capacity = 100
    with pytest.raises(OutOfMemory, match="NPU out of memory"):
        open_at(backend(), version_dir(ENCODER, "torch") / "model.pt2")


# -- failures -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("code", "error"), [(EXHAUSTED, OutOfMemory), (FAILED, EngineFault)])
def test_codes_in_messages_of_torch_npu_are_classified(encoder, state, code, error):
    assert right(encoder, 2, 3)
    state.fails_with = code
    with pytest.raises(error, match=f"error code is {code}"):
        right(encoder, 2, 3)
    assert not encoder.lost
    assert right(encoder, 2, 3)


def test_card_that_torch_found_lost_is_lost_for_all_that_use_it(version_dir, backend, state):
    path = version_dir(ENCODER, "torch") / "model.pt2"
    first, neighbour = (open_at(backend(), path) for _ in range(2))
    assert all(right(engine, 2, 3) for engine in (first, neighbour))
    state.fails_with = LOST
    with pytest.raises(EngineLost, match=f"error code is {LOST}"):
        right(first, 2, 3)
    assert [engine.lost for engine in (first, neighbour)] == [True, True]
    assert PROCESS_CARDS.health(1).lost is None
    state.fails_with = FAILED  # what a call on the card would meet: none is made
    with pytest.raises(EngineLost, match=f"error code is {LOST}"):
        right(neighbour, 2, 3)
    with pytest.raises(EngineLost, match=f"error code is {LOST}"):
        backend(0)
    with pytest.raises(EngineLost, match=f"error code is {LOST}"):
        AscendBackend(0)


def test_a_second_card_in_the_process_is_refused(backend):
    backend(1)
    with pytest.raises(NoDevice, match=r"npu:0: found engine torch on npu:1 .*, expected one card"):
        backend(0)
    backend(1)


@pytest.mark.parametrize("chip", ["Ascend310P3", "Ascend310B1", "Ascend910A", "Ascend910PremiumA"])
def test_chips_without_torchair_are_refused(backend, monkeypatch, chip):
    import torch

    monkeypatch.setattr(torch.npu, "get_device_name", lambda index: chip, raising=False)
    with pytest.raises(NoDevice, match=f"npu:0: found {chip} for engine torch, expected a chip"):
        backend()


def test_card_that_is_not_there_is_reported_with_the_count(backend):
    with pytest.raises(NoDevice, match=r"npu:2: found 2 device\(s\), expected more than 2: `npu"):
        backend(2)


def test_file_that_is_no_program_is_a_fault_with_its_path(tmp_path, backend):
    path = tmp_path / "model.pt2"
    path.write_bytes(b"no program")
    with pytest.raises(ArtifactFault, match=r"model\.pt2: torch cannot open it"):
        open_at(backend(), path)


# -- the runtime on it --------------------------------------------------------------------------

GEARED = {"gears.batch": "8", "gears.tokens": "32"}
CARD = {"devices": "npu:0", "cost": "launch_us=100, element_ns=10, element2_ns=0"}


def runtime_of(folder, parameters):
    config = encoder_config({**CARD, **parameters})
    return closing(Runtime.open(folder, config, instance_name="encoder_0"))


def test_unplanned_work_is_reported_with_the_plan(version_dir, encoder):
    assert isinstance(encoder, Limited)
    with runtime_of(version_dir(ENCODER, "torch"), GEARED) as runtime:
        assert runtime.report[0] == (
            "encoder_0: engine torch, because model.pt2 is there and torch_npu is installed; "
            "model.om is not there; model.air is not there"
        )
        assert runtime.report[1:3] == (
            "encoder_0: engine torch is experimental on npu: it was never run on such a device",
            "encoder_0: npu:0 is fake of torch_npu",
        )
        reported = [line for line in runtime.report if "not planned: " in line]
        assert len(reported) == len(encoder.unplanned) == 3
        assert runtime.gauges()["allocations_after_freeze"] == 0


def test_the_parameter_chooses_captures_for_the_gears(version_dir, state, capture):
    gears = {**GEARED, "load_check": "off"}
    with runtime_of(version_dir(ENCODER, "torch"), {**gears, "torch_compiler": capture}):
        assert [shapes[0] for shapes in state.captured] == [(8, 32)]


@pytest.mark.parametrize(
    "parameters", [{}, {"gears.batch": "1, 8"}, {**GEARED, "oversize": "fallback"}]
)
def test_sizes_that_would_be_compiled_while_serving_are_refused(version_dir, parameters):
    with pytest.raises(ConfigFault, match="found sizes without gears, expected gears for batch"):
        runtime_of(version_dir(ENCODER, "torch"), parameters)


def test_graph_that_does_not_fit_the_card_is_a_fault_of_the_plan(version_dir, state):
    state.capacity = 100
    with pytest.raises(PlanFault, match="the graph does not fit: npu:0: torch: NPU out of memory"):
        runtime_of(version_dir(ENCODER, "torch"), GEARED)


# -- where something is missing -----------------------------------------------------------------


def told_by(code, *path, **environment):
    """Return the output of `code` in a new Python, with only the fakes on `path`."""
    without = [each for each in sys.path if each != str(FAKES)]
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={
            **{k: v for k, v in os.environ.items() if k != "TORCH_DEVICE_BACKEND_AUTOLOAD"},
            "PYTHONPATH": os.pathsep.join([*map(str, path), *without]),
            **environment,
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


OPEN = """
    from ge_runtime.npu.engines.torch_npu import TorchNpuBackend
    from ge_runtime.errors import NoDevice
    try:
        TorchNpuBackend(0, {})
    except NoDevice as fault:
        print(fault)
"""
#: Each in a fork of a process that has imported torch, because the import takes two seconds.
OPEN_EACH = """
    import os, sys
    import torch
    for path, variable in {cases}:
        sys.stdout.flush()
        child = os.fork()
        if child:
            assert os.waitpid(child, 0)[1] == 0
            print("----")
            continue
        sys.path[:0] = path
        os.environ.update(dict.fromkeys(variable, "1"))
        {open}
        sys.stdout.flush()
        os._exit(0)
"""


@pytest.mark.slow
def test_missing_pieces_are_named_with_the_line_that_fixes_them(tmp_path):
    (tmp_path / "torch_npu.py").write_text("import sys; sys.exit()")  # as up to 2.1
    cases = [
        ([], []),
        ([str(FAKES)], ["FAKE_TORCH_NPU_WITHOUT_CANN"]),
        ([str(tmp_path)], []),
        ([str(FAKES)], ["FAKE_TORCHAIR_WITHOUT_CANN"]),
    ]
    opening = textwrap.indent(textwrap.dedent(OPEN), " " * 8).strip()
    reported = told_by(OPEN_EACH.format(cases=cases, open=opening))
    without, no_cann, exits, no_compiler, _ = reported.split("----\n")
    assert "`import torch_npu` failed (No module named 'torch_npu')" in without
    assert "`pip install torch_npu==2." in without
    assert "`import torch_npu` failed (libhccl.so: cannot open shared object file" in no_cann
    assert "run `source /usr/local/Ascend/cann/set_env.sh` before the server starts" in no_cann
    assert "`import torch_npu` failed (SystemExit: )" in exits
    assert "`import torchair` failed (libge_runner.so: cannot open shared" in no_compiler
    assert "pip install packaging protobuf" in no_compiler


@pytest.mark.slow
def test_torch_is_imported_beside_a_torch_npu_that_cannot_be(tmp_path):
    """Without CANN, the wheel of torch_npu breaks `import torch`."""
    installed = tmp_path / "torch_npu-2.13.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: torch_npu\nVersion: 2.13.0\n")
    entry_points = "[torch.backends]\ntorch_npu = torch_npu:_autoload\n"
    (installed / "entry_points.txt").write_text(entry_points)
    (tmp_path / "torch_npu.py").write_text("raise ImportError('libhccl.so: cannot open')\n")
    code = """
        import os
        try:
            {}
            print("torch", "TORCH_DEVICE_BACKEND_AUTOLOAD" in os.environ)
        except (RuntimeError, ImportError) as error:
            print(error)
    """
    ours = "from ge_runtime.engines.torch import import_torch; import_torch()"
    assert told_by(code.format(ours), tmp_path) == "torch False\n"
    reported = told_by(OPEN, tmp_path, TORCH_DEVICE_BACKEND_AUTOLOAD="1")
    assert "npu:0: found no torch (Failed to load the backend extension: torch_npu" in reported
