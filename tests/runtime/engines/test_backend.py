"""Device backends: what the host's gives, and takes back. Others have tests of their own."""

import gc
import weakref

import numpy as np
from runtime.engines.conformance_engine import token_batch
from runtime.support.configs import encoder_config
from runtime.support.graphs import ENCODER

from ge_runtime import Runtime
from ge_runtime.engines.artifact import find_artifacts
from ge_runtime.engines.backend import HostBackend, open_backend

COST = {"cost": "launch_us=100, element_ns=100, element2_ns=0"}


def test_the_host_is_a_backend_whose_engines_work_in_its_memory(version_dir):
    backend = open_backend("cpu")
    assert isinstance(backend, HostBackend)
    assert (backend.kind, backend.name, backend.hardware) == ("cpu", "cpu", "host")
    artifacts = find_artifacts(version_dir(ENCODER), "onnxruntime")
    engine = backend.open(artifacts, threads=1, outputs=["embedding"])
    engine.bind([], backend.memory)
    inputs, expected = token_batch(2, 5)
    target = backend.memory.allocate("answers", 32).memory.view(np.float32).reshape(2, 4)
    assert engine.run(inputs, {"embedding": target})["embedding"] is target
    np.testing.assert_allclose(target, expected, rtol=1e-5)
    engine.close()


def test_a_frozen_backend_counts_and_a_closed_one_has_nothing_left():
    backend = open_backend("cpu")
    backend.memory.allocate("inputs", 100)
    backend.freeze()
    backend.memory.allocate("late", 10)
    assert backend.memory.allocations_after_freeze == 1
    backend.close()
    backend.close()
    assert backend.memory.used_bytes == 0


def test_a_closed_runtime_keeps_no_memory_but_that_of_answers(version_dir):
    runtime = Runtime.open(version_dir(ENCODER), encoder_config(COST), instance_name="tiny_0")
    (backend,) = runtime._parts.backends
    memory = [weakref.ref(buffer.memory.base) for buffer in backend.memory._live]
    tokens = {"input_ids": np.array([[1, 2]]), "lengths": np.array([[2]], np.int32)}
    (answer,) = runtime.infer([tokens])
    runtime.close()
    gc.collect()
    assert sum(ref() is not None for ref in memory) == 1
    del answer
    assert all(ref() is None for ref in memory)
    assert backend.memory.used_bytes == 0
