"""The ONNX Runtime engine on a GPU.

Without one, the errors about missing parts are real, and the engine's code runs on ONNX Runtime's
provider for the CPU. With one, `-m gpu` runs the rest.
"""

import sys
import threading
from contextlib import ExitStack, closing

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from runtime.engines.conformance_engine import EngineConformance, token_batch
from runtime.support.configs import encoder_config
from runtime.support.gpus import fake_gpu, real_gpu
from runtime.support.graphs import ENCODER, TABLE, onnx_model

from ge_runtime import Runtime
from ge_runtime.components import engines_on
from ge_runtime.engines import cuda_backend
from ge_runtime.engines import onnx as onnx_engine
from ge_runtime.engines.artifact import Artifact, is_installed
from ge_runtime.engines.backend import open_backend
from ge_runtime.engines.base import Limited
from ge_runtime.engines.onnx import OnnxCudaEngine, open_session, signature_of
from ge_runtime.errors import ArtifactFault, EngineFault, EngineLost, NoDevice, OutOfMemory
from ge_runtime.testing.conformance import check

TIMEOUT_S = 30
RECORDED = {"session.record_ep_graph_assignment_info": "1"}


@pytest.fixture
def fake(monkeypatch):
    return fake_gpu(monkeypatch)


@pytest.fixture
def on_host(version_dir, fake):
    """A function: the engine of a graph, on the provider for the CPU."""

    def open_(graph, threads=1):
        path = version_dir(graph) / "model.onnx"
        session = open_session(path, threads, ["CPUExecutionProvider"], RECORDED)
        gpu = cuda_backend.PROCESS_GPUS.gpu(0)
        return OnnxCudaEngine(gpu, session, signature_of(path, session), path)

    return open_


@pytest.fixture
def on_gpu(version_dir):
    """A function: the engine of a graph, on a GPU; closed at the end."""
    real_gpu("onnxruntime")
    with ExitStack() as stack:

        def open_(graph, threads=1):
            backend = open_backend("cuda:0")
            stack.callback(backend.close)
            artifact = Artifact(version_dir(graph) / "model.onnx", "onnxruntime", "")
            engine = backend.open([artifact], threads=threads, outputs=["y"])
            stack.callback(engine.close)
            return engine

        yield open_


class TestOnTheHostsProvider(EngineConformance):
    @pytest.fixture
    def opened(self, on_host):
        return on_host


@pytest.mark.gpu
class TestOnAGpu(EngineConformance):
    # CUDA's Gather takes an index out of range for a row of zeros.
    test_failing_graph_is_a_fault_and_the_engine_stays_usable = None

    @pytest.fixture
    def opened(self, on_gpu):
        return on_gpu


# -- what executions mean -----------------------------------------------------------------------


class Failing:
    """A session that fails."""

    def __init__(self, text):
        self.text = text

    def io_binding(self):
        return self

    def bind_cpu_input(self, name, array):
        raise RuntimeError(self.text)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("Failed to allocate memory for requested buffer of size 4096", OutOfMemory),
        ("Available memory of 1024 is smaller than requested bytes of 4096", OutOfMemory),
        ("CUDA failure 2: out of memory ; GPU=0 ; hostname=h", OutOfMemory),
        ("Non-zero status code returned while running Reshape node", EngineFault),
    ],
)
def test_error_texts_are_classified(on_host, text, error):
    engine = on_host(ENCODER)
    engine._session = Failing(text)
    with pytest.raises(error, match="cuda:0: onnxruntime: "):
        engine.run(token_batch(1, 1)[0], {"embedding": None})
    assert not engine.lost


def test_a_broken_gpu_is_lost_for_any_error_text(on_host, fake):
    engine, other = on_host(ENCODER), on_host(ENCODER)
    engine._session = Failing("CUBLAS failure 13: CUBLAS_STATUS_EXECUTION_FAILED ; GPU=0")
    fake.lost = "an illegal memory access was encountered"
    with pytest.raises(EngineLost, match=r"CUBLAS failure 13.*; the GPU is lost to this process"):
        engine.run(token_batch(1, 1)[0], {"embedding": None})
    assert other.lost
    with pytest.raises(EngineLost):
        other.run(token_batch(1, 1)[0], {"embedding": None})


def test_unplanned_work_is_reported(on_host):
    engine = on_host(ENCODER)
    assert isinstance(engine, Limited)
    assert engine.device_io_bytes() is None
    # Here all of it is: on a GPU what computes sizes, and nothing else.
    assert engine.unplanned[-1].startswith("executed on the CPU, to compute sizes: 1 Cast, 1 Div")


# -- what is refused ----------------------------------------------------------------------------


def opened_at(path):
    backend = open_backend("cuda:0")
    try:
        artifact = Artifact(path, "onnxruntime", "")
        return backend.open([artifact], threads=1, outputs=["y"])
    finally:
        backend.close()


@pytest.mark.skipif(
    is_installed(engines_on("cuda")["onnxruntime"].requires), reason="onnxruntime-gpu is installed"
)
def test_onnxruntime_for_the_cpu_is_reported_with_the_fix(version_dir, fake):
    cure = (
        r"cuda:0: found onnxruntime [\d.]+ without CUDA, expected onnxruntime-gpu: `pip uninstall "
        r"-y onnxruntime; pip install 'onnxruntime-gpu\[cuda,cudnn\]'`; both install one module"
    )
    with pytest.raises(NoDevice, match=cure):
        opened_at(version_dir(ENCODER) / "model.onnx")


@pytest.fixture
def hosts_provider(monkeypatch, fake):
    """The CPU's provider in place of CUDA's."""
    import onnxruntime

    monkeypatch.setattr(onnx_engine, "_CUDA_PROVIDER", "CPUExecutionProvider")
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: print("not found"))


def test_graph_that_the_cpu_would_execute_is_refused(version_dir, hosts_provider, capsys):
    text = r"model\.onnx: found 1 ReduceSum that CUDA does not support; expected"
    path = version_dir(ENCODER) / "model.onnx"
    with pytest.raises(ArtifactFault, match=text.replace("1 ReduceSum", "2 ReduceSum")):
        opened_at(path)
    assert capsys.readouterr().out == ""


@pytest.mark.brute_force
def test_two_that_open_at_once_leave_what_is_printed_alone(
    version_dir, hosts_provider, monkeypatch
):
    import onnxruntime

    beside = []

    def preload():
        """The second one comes while the first is here, and must not leave after it."""
        if not beside:
            beside.append(threading.Thread(target=opened, daemon=True))
            beside[0].start()
            second_is_here.wait(0.2)
        else:
            second_is_here.set()
            first_has_left.wait(TIMEOUT_S)

    def opened():
        with pytest.raises(ArtifactFault):
            opened_at(path)

    second_is_here, first_has_left = threading.Event(), threading.Event()
    path, before = version_dir(ENCODER) / "model.onnx", sys.stdout
    monkeypatch.setattr(onnxruntime, "preload_dlls", preload)
    opened()
    first_has_left.set()
    beside[0].join(TIMEOUT_S)
    assert not beside[0].is_alive()
    assert sys.stdout is before


def test_nodes_that_compute_sizes_may_be_on_the_cpu(tmp_path, hosts_provider):
    path = tmp_path / "model.onnx"
    onnx.save(
        onnx_model(
            [
                helper.make_node("Shape", ["x"], ["size"]),
                helper.make_node("Add", ["size", "size"], ["y"]),
            ],
            [("x", TensorProto.FLOAT, ["batch", 3])],
            [("y", TensorProto.INT64, [2])],
        ),
        path,
    )
    assert opened_at(path).unplanned[-1].endswith("to compute sizes: 1 Add, 1 Shape")


def test_a_provider_that_does_not_load_is_reported_with_the_missing_library(
    version_dir, fake, monkeypatch
):
    """Simulate onnxruntime-gpu 1.31 without CUDA's libraries, which continues with the CPU."""
    import onnxruntime

    monkeypatch.setattr(
        onnxruntime, "get_available_providers", lambda: [onnx_engine._CUDA_PROVIDER]
    )
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: None)
    monkeypatch.setattr(onnxruntime, "cuda_version", "13.0", raising=False)
    monkeypatch.setattr(
        onnx_engine,
        "open_session",
        lambda path, threads, providers, entries: open_session(
            path, threads, ["CPUExecutionProvider"], entries
        ),
    )
    with pytest.raises(NoDevice) as raised:
        opened_at(version_dir(ENCODER) / "model.onnx")
    assert "that cannot use it (" in str(raised.value)
    assert "expected CUDA 13.0 and cuDNN 9: `pip install 'onnxruntime-gpu" in str(raised.value)


# -- with a GPU ---------------------------------------------------------------------------------

ON_GPU = {"devices": "cuda:0", "gears.batch": "1, 4, 8", "gears.tokens": "8, 32"}


@pytest.mark.gpu
def test_no_answer_depends_on_its_company(version_dir):
    real_gpu("onnxruntime")
    config = encoder_config({**ON_GPU, "cost": "launch_us=100, element_ns=10, element2_ns=0"})
    report = check(version_dir(ENCODER), config, ranges={"input_ids": (0, 16)}, rounds=3)
    assert report.passed, str(report)


@pytest.mark.gpu
def test_workspace_may_have_a_limit(version_dir):
    real_gpu("onnxruntime")
    config = encoder_config({**ON_GPU, "workspace_pool_mib": "64"})
    with closing(Runtime.open(version_dir(ENCODER), config, instance_name="encoder_0")) as runtime:
        tokens = {"input_ids": np.array([[1, 2]]), "lengths": np.array([[2]], np.int32)}
        (answer,) = runtime.infer([tokens])
        np.testing.assert_allclose(answer["embedding"][0], TABLE[[1, 2]].mean(axis=0), rtol=1e-5)
