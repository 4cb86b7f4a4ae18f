"""Engines in the device service are engines: the suite that all pass, and what is theirs alone."""

import numpy as np
import pytest
from runtime.engines.conformance_engine import EngineConformance, token_batch
from runtime.support.graphs import ENCODER, NONZERO, PIXELS, copy_of

from ge_runtime.engines.artifact import Artifact
from ge_runtime.engines.base import Engine, Remote
from ge_runtime.errors import ArtifactFault, EngineFault
from ge_runtime.npu.service.backend import ServiceBackend

pytestmark = pytest.mark.brute_force


def artifact(version_dir, graph, engine="onnxruntime"):
    name = {"onnxruntime": "model.onnx", "torch": "model.pt2"}[engine]
    return Artifact(version_dir(graph, engine) / name, engine, "the test says so")


@pytest.fixture(scope="module")
def backend(shared_services):
    backend = ServiceBackend("cpu", "conformance")
    yield backend
    backend.close()


class TestEngineInTheService(EngineConformance):
    @pytest.fixture
    def opened(self, version_dir, backend):
        def open_engine(graph, threads=1):
            outputs = ["embedding", "sums", "inverted", "y", "where"]
            return backend.open([artifact(version_dir, graph)], threads=threads, outputs=outputs)

        return open_engine


@pytest.fixture
def encoder(version_dir, backend):
    engine = backend.open([artifact(version_dir, ENCODER)], threads=1, outputs=["embedding"])
    yield engine
    engine.close()


def test_it_is_an_engine_of_another_process(encoder):
    checked: Engine = encoder
    assert isinstance(checked, Remote)
    assert not encoder.lost


def test_tensors_in_the_backend_s_memory_are_not_copied(backend, encoder):
    before = backend.memory.used_bytes
    arena = backend.memory.allocate("test", 4096)
    inputs, expected = token_batch(2, 3)
    for index, (name, array) in enumerate(inputs.items()):
        own = arena.memory[index * 64 : index * 64 + array.nbytes].view(array.dtype)
        inputs[name] = own.reshape(array.shape)
        inputs[name][...] = array
    answer = arena.memory[1024 : 1024 + 32].view(np.float32).reshape(2, 4)
    results = encoder.run(inputs, {"embedding": answer})
    assert results["embedding"] is answer
    np.testing.assert_allclose(answer, expected, rtol=1e-5)
    assert backend.memory.used_bytes == before + 4096
    arena.free()


@pytest.mark.parametrize("shift", [1, 8, 63])
def test_tensors_that_start_anywhere_are_executed_as_well(backend, encoder, shift):
    arena = backend.memory.allocate("test", 4096)
    inputs, expected = token_batch(2, 3)
    for index, (name, array) in enumerate(inputs.items()):
        start = index * 512 + shift
        own = arena.memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
        own[...] = array
        inputs[name] = own
    results = encoder.run(inputs, {"embedding": None})
    np.testing.assert_allclose(results["embedding"], expected, rtol=1e-5)
    arena.free()


def test_memory_for_tensors_from_elsewhere_is_kept_and_grows(backend, encoder):
    encoder.run(token_batch(1, 1)[0], {"embedding": None})
    first = backend.memory.allocated_bytes["staging"]
    encoder.run(token_batch(8, 32)[0], {"embedding": None})
    second = backend.memory.allocated_bytes["staging"]
    encoder.run(token_batch(8, 32)[0], {"embedding": None})
    assert first < second == backend.memory.allocated_bytes["staging"]


def test_elements_of_another_type_are_a_fault_and_never_taken_for_its_own(encoder):
    inputs, _ = token_batch(2, 3)
    with pytest.raises(EngineFault, match="'input_ids': found float64, expected int64"):
        encoder.run({**inputs, "input_ids": inputs["input_ids"] * 1.0}, {"embedding": None})
    with pytest.raises(EngineFault, match="'embedding': found int32, expected float32"):
        encoder.run(inputs, {"embedding": np.empty((2, 4), np.int32)})


def test_batches_without_rows_are_executed(version_dir, backend):
    engine = backend.open([artifact(version_dir, copy_of(np.float32))], threads=1, outputs=["y"])
    empty = np.empty((0, 3), np.float32)
    assert engine.run({"x": empty}, {"y": None})["y"].shape == (0, 3)
    assert engine.run({"x": empty}, {"y": np.empty((0, 3), np.float32)})["y"].shape == (0, 3)
    engine.close()


def test_results_that_the_engine_allocated_outlive_it(version_dir, backend):
    engine = backend.open([artifact(version_dir, NONZERO)], threads=1, outputs=["where"])
    first = engine.run({"x": np.array([0, 1], np.float32)}, {"where": None})["where"]
    second = engine.run({"x": np.array([1, 1], np.float32)}, {"where": None})["where"]
    engine.close()
    assert (first.tolist(), second.tolist()) == ([[1]], [[0, 1]])
    assert first.flags.writeable


def test_large_messages_travel_whole(version_dir, backend, encoder):
    """Shapes of thousands of gears are more than a packet holds."""
    shapes = dict.fromkeys(("input_ids", "attention_mask"), (1, 1))
    encoder.bind([{**shapes, "input_ids": (1, size)} for size in range(4000)], backend.memory)
    encoder.run(token_batch(2, 3)[0], {"embedding": None})


def test_artifact_that_is_none_is_refused_in_its_engine_s_words(tmp_path, backend):
    path = tmp_path / "model.onnx"
    path.write_bytes(b"no graph")
    with pytest.raises(ArtifactFault) as raised:
        backend.open([Artifact(path, "onnxruntime", "")], threads=1, outputs=["y"])
    assert str(raised.value).startswith(f"{path}: onnxruntime cannot open it: ")
    with pytest.raises(ArtifactFault, match="No such file"):
        backend.open([Artifact(tmp_path / "x.onnx", "onnxruntime", "")], threads=1, outputs=["y"])


def test_two_engines_of_one_client_are_apart(version_dir, backend, encoder):
    pixels = backend.open([artifact(version_dir, PIXELS)], threads=1, outputs=["sums"])
    image = {"image": np.ones((1, 1, 2, 2), np.float32), "mask": np.ones((1, 2, 2), np.float32)}
    assert pixels.run(image, {"sums": None})["sums"].tolist() == [[4.0, 4.0]]
    inputs, expected = token_batch(2, 3)
    np.testing.assert_allclose(
        encoder.run(inputs, {"embedding": None})["embedding"], expected, rtol=1e-5
    )
    pixels.close()
