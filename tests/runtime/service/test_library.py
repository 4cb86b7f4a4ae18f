import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from onnx import TensorProto, helper
from runtime.support.graphs import ENCODER, PIXELS, onnx_model, write

from ge_runtime.engines.artifact import Artifact
from ge_runtime.engines.backend import HostBackend
from ge_runtime.errors import ArtifactFault, OutOfMemory
from ge_runtime.service import library as library_module
from ge_runtime.service.library import Library


class CountingPlace(HostBackend):
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
def place():
    return CountingPlace()


@pytest.fixture
def library(place):
    return Library(place)


def artifact(folder, graph=ENCODER):
    return Artifact(write(graph, "onnxruntime", folder), "onnxruntime", "")


def borrow(library, artifact, threads=1, outputs=("embedding",)):
    return library.borrow([artifact], threads=threads, outputs=outputs)


def test_equal_files_are_one_engine_whatever_their_folders(library, place, tmp_path):
    first = borrow(library, artifact(tmp_path / "a"))
    second = borrow(library, artifact(tmp_path / "b"))
    assert first is second
    assert (first.users, place.opened) == (2, 1)
    library.give_back(first)
    assert place.open_now == 1
    library.give_back(second)
    assert (place.open_now, library.volumes()) == (0, [])


def test_other_content_or_options_are_other_engines(library, place, tmp_path):
    same = artifact(tmp_path / "a")
    volumes = [
        borrow(library, same),
        borrow(library, same, threads=2),
        borrow(library, artifact(tmp_path / "b", PIXELS), outputs=("sums",)),
    ]
    assert len({id(volume) for volume in volumes}) == place.opened == 3
    library.close()
    assert place.open_now == 0


def test_analysis_of_shapes_is_kept_for_all_clients_and_not_without_bound(
    library, tmp_path, monkeypatch
):
    monkeypatch.setattr(library_module, "_MOST_ANALYSED", 2)
    volume = borrow(library, artifact(tmp_path))
    asked, analyse = [], volume.engine.intermediates

    def intermediates(shapes):
        asked.append(shapes["input_ids"][1])
        return analyse(shapes)

    monkeypatch.setattr(volume.engine, "intermediates", intermediates)
    for size in (1, 2, 1, 2, 3, 3, 1):
        shapes = {"input_ids": (1, size), "attention_mask": (1, size)}
        assert volume.intermediates(shapes) == analyse(shapes)
    assert asked == [1, 2, 3, 1]
    library.close()


def test_many_who_want_the_same_wait_for_one_to_open_it(library, place, tmp_path):
    wanted = artifact(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        volumes = list(pool.map(lambda _: borrow(library, wanted), range(8)))
    assert ({id(volume) for volume in volumes}, place.opened) == ({id(volumes[0])}, 1)
    library.close()


def test_engines_come_and_go_in_any_order_and_none_is_left(library, place, tmp_path):
    wanted = artifact(tmp_path)

    def come_and_go(_):
        volume = borrow(library, wanted)
        inputs = np.zeros((1, 1), np.int64)
        given = {"input_ids": inputs, "attention_mask": inputs + 1}
        assert volume.engine.run(given, {"embedding": None})["embedding"].shape == (1, 4)
        library.give_back(volume)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(come_and_go, range(40)))
    assert (place.open_now, library.volumes()) == (0, [])


def test_file_that_cannot_be_opened_leaves_nothing(library, place, tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"no graph")
    broken = Artifact(tmp_path / "model.onnx", "onnxruntime", "")
    for _ in range(2):
        with pytest.raises(ArtifactFault):
            borrow(library, broken)
    assert (place.opened, library.volumes()) == (0, [])


def test_file_that_changes_while_it_is_opened_is_refused(library, place, tmp_path):
    wanted = artifact(tmp_path)
    opening = place.open

    def changed_meanwhile(*args, **options):
        engine = opening(*args, **options)
        write(PIXELS, "onnxruntime", tmp_path)
        return engine

    place.open = changed_meanwhile
    with pytest.raises(ArtifactFault, match="changed while it was opened"):
        borrow(library, wanted)
    assert (place.open_now, library.volumes()) == (0, [])


def test_memory_that_cannot_grow_stays_what_it_was(library, place, tmp_path, monkeypatch):
    chain = chain_of(tmp_path)
    volume = library.borrow(chain, threads=1, outputs=["z"])
    library.prepare(volume, [{"x": (1, 100)}])
    small = place.memory.used_bytes

    def full(label, nbytes):
        raise OutOfMemory("no bytes left")

    with monkeypatch.context() as patch:
        patch.setattr(place.memory, "allocate", full)
        with pytest.raises(OutOfMemory):
            library.prepare(volume, [{"x": (8, 100)}])
    assert place.memory.used_bytes == small
    x = np.ones((1, 100), np.float32)
    np.testing.assert_array_equal(volume.engine.run({"x": x}, {"z": None})["z"], x)
    library.prepare(volume, [{"x": (8, 100)}])
    library.give_back(volume)
    assert place.memory.used_bytes == 0


def test_engine_that_cannot_be_prepared_for_more_is_as_it_was(library, tmp_path, monkeypatch):
    volume = borrow(library, artifact(tmp_path))
    bound = []

    def bind(largest, memory):
        bound[:] = []  # what there was before is gone first
        if len(largest) > 1:
            raise OutOfMemory("no bytes left")
        bound[:] = largest

    monkeypatch.setattr(volume.engine, "bind", bind)
    small, large = ({"input_ids": (n, 8), "attention_mask": (n, 8)} for n in (1, 64))
    library.prepare(volume, [small])
    with pytest.raises(OutOfMemory):
        library.prepare(volume, [large])
    assert bound == volume.largest == [small]
    library.close()


def test_memory_of_a_chain_grows_with_its_users_needs_and_goes_with_it(library, place, tmp_path):
    volume = library.borrow(chain_of(tmp_path), threads=1, outputs=["z"])
    library.prepare(volume, [{"x": (1, 100)}])
    small = place.memory.used_bytes
    library.prepare(volume, [{"x": (8, 100)}])
    large = place.memory.used_bytes
    library.prepare(volume, [{"x": (1, 100)}])
    assert 0 < small < large == place.memory.used_bytes
    assert volume.exclusive is not None
    library.give_back(volume)
    assert place.memory.used_bytes == 0


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
