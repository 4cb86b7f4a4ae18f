import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from onnx import TensorProto, helper
from runtime.support.graphs import ENCODER, PIXELS, onnx_model, write

from ge_runtime.engines.artifact import Artifact
from ge_runtime.engines.backend import HostBackend
from ge_runtime.errors import ArtifactFault, OutOfMemory
from ge_runtime.npu.service import model_cache as cache_module
from ge_runtime.npu.service.model_cache import ModelCache


class CountingBackend(HostBackend):
    """The host, with the number of engines that are open."""

    def __init__(self):
        super().__init__("cpu")
        self.open_now = self.opened = 0
        self.lock = threading.Lock()

    def open(self, artifacts, *, threads, outputs):
        engine = super().open(artifacts, threads=threads, outputs=outputs)
        close = engine.close
        with self.lock:
            self.opened += 1
            self.open_now += 1

        def counted():
            with self.lock:
                self.open_now -= 1
            close()

        engine.close = counted
        return engine


@pytest.fixture
def backend():
    return CountingBackend()


@pytest.fixture
def cache(backend):
    return ModelCache(backend)


def artifact(folder, graph=ENCODER):
    return Artifact(write(graph, "onnxruntime", folder), "onnxruntime", "")


def acquire(cache, artifact, threads=1, outputs=("embedding",)):
    return cache.acquire([artifact], threads=threads, outputs=outputs)


def test_equal_files_in_different_folders_share_an_engine(cache, backend, tmp_path):
    first = acquire(cache, artifact(tmp_path / "a"))
    second = acquire(cache, artifact(tmp_path / "b"))
    assert first is second
    assert (first.users, backend.opened) == (2, 1)
    cache.release(first)
    assert backend.open_now == 1
    cache.release(second)
    assert (backend.open_now, cache.models()) == (0, [])


def test_other_content_or_options_are_other_engines(cache, backend, tmp_path):
    same = artifact(tmp_path / "a")
    models = [
        acquire(cache, same),
        acquire(cache, same, threads=2),
        acquire(cache, artifact(tmp_path / "b", PIXELS), outputs=("sums",)),
    ]
    assert len({id(model) for model in models}) == backend.opened == 3
    cache.close()
    assert backend.open_now == 0


def test_analysis_of_shapes_is_kept_for_all_clients_and_not_without_bound(
    cache, tmp_path, monkeypatch
):
    monkeypatch.setattr(cache_module, "_MOST_ANALYSED", 2)
    model = acquire(cache, artifact(tmp_path))
    asked, analyse = [], model.engine.intermediates

    def intermediates(shapes):
        asked.append(shapes["input_ids"][1])
        return analyse(shapes)

    monkeypatch.setattr(model.engine, "intermediates", intermediates)
    for size in (1, 2, 1, 2, 3, 3, 1):
        shapes = {"input_ids": (1, size), "attention_mask": (1, size)}
        assert model.intermediates(shapes) == analyse(shapes)
    assert asked == [1, 2, 3, 1]
    cache.close()


def test_clients_of_the_same_model_wait_for_one_to_open_it(cache, backend, tmp_path):
    wanted = artifact(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        models = list(pool.map(lambda _: acquire(cache, wanted), range(8)))
    assert ({id(model) for model in models}, backend.opened) == ({id(models[0])}, 1)
    cache.close()


def test_engines_come_and_go_in_any_order_and_none_is_left(cache, backend, tmp_path):
    wanted = artifact(tmp_path)

    def come_and_go(_):
        model = acquire(cache, wanted)
        inputs = np.zeros((1, 1), np.int64)
        given = {"input_ids": inputs, "attention_mask": inputs + 1}
        assert model.engine.run(given, {"embedding": None})["embedding"].shape == (1, 4)
        cache.release(model)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(come_and_go, range(40)))
    assert (backend.open_now, cache.models()) == (0, [])


def test_file_that_cannot_be_opened_leaves_nothing(cache, backend, tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"no graph")
    broken = Artifact(tmp_path / "model.onnx", "onnxruntime", "")
    for _ in range(2):
        with pytest.raises(ArtifactFault):
            acquire(cache, broken)
    assert (backend.opened, cache.models()) == (0, [])


def test_file_that_changes_while_it_is_opened_is_refused(cache, backend, tmp_path):
    wanted = artifact(tmp_path)
    opening = backend.open

    def changed_meanwhile(*args, **options):
        engine = opening(*args, **options)
        write(PIXELS, "onnxruntime", tmp_path)
        return engine

    backend.open = changed_meanwhile
    with pytest.raises(ArtifactFault, match="changed while the file was opened"):
        acquire(cache, wanted)
    assert (backend.open_now, cache.models()) == (0, [])


def test_memory_that_cannot_grow_stays_what_it_was(cache, backend, tmp_path, monkeypatch):
    chain = chain_of(tmp_path)
    model = cache.acquire(chain, threads=1, outputs=["z"])
    cache.prepare(model, [{"x": (1, 100)}])
    small = backend.memory.used_bytes

    def full(label, nbytes):
        raise OutOfMemory("no bytes left")

    with monkeypatch.context() as patch:
        patch.setattr(backend.memory, "allocate", full)
        with pytest.raises(OutOfMemory):
            cache.prepare(model, [{"x": (8, 100)}])
    assert backend.memory.used_bytes == small
    x = np.ones((1, 100), np.float32)
    np.testing.assert_array_equal(model.engine.run({"x": x}, {"z": None})["z"], x)
    cache.prepare(model, [{"x": (8, 100)}])
    cache.release(model)
    assert backend.memory.used_bytes == 0


def test_engine_that_cannot_be_prepared_for_more_is_as_it_was(cache, tmp_path, monkeypatch):
    model = acquire(cache, artifact(tmp_path))
    bound = []

    def bind(largest, memory):
        bound[:] = []  # what there was before is gone first
        if len(largest) > 1:
            raise OutOfMemory("no bytes left")
        bound[:] = largest

    monkeypatch.setattr(model.engine, "bind", bind)
    small, large = ({"input_ids": (n, 8), "attention_mask": (n, 8)} for n in (1, 64))
    cache.prepare(model, [small])
    with pytest.raises(OutOfMemory):
        cache.prepare(model, [large])
    assert bound == model.largest == [small]
    cache.close()


def chain_of(folder):
    """Two stages that give back what they were given."""
    chain = []
    for stage in ("first", "second"):
        (folder / f"{stage}.onnx").write_bytes(stage_of(stage))
        chain.append(Artifact(folder / f"{stage}.onnx", "onnxruntime", ""))
    return chain


def stage_of(name):
    given, made = {"first": ("x", "y"), "second": ("y", "z")}[name]
    return onnx_model(
        [helper.make_node("Neg", [given], [made])],
        [(given, TensorProto.FLOAT, ["batch", "n"])],
        [(made, TensorProto.FLOAT, ["batch", "n"])],
    ).SerializeToString()
