"""Graphs of equal content are one session, and all sessions of a process execute in one arena."""

import json
import os
import subprocess
import sys
from threading import Thread

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from runtime.support.graphs import ENCODER, encode, onnx_model, write

from ge_runtime.engines import onnx as onnx_engine
from ge_runtime.engines.onnx import OnnxEngine
from ge_runtime.engines.onnx_arena import OnnxArena
from ge_runtime.engines.onnx_session import PROCESS_SESSIONS, import_onnxruntime

reserving = pytest.mark.skipif(
    not hasattr(onnxruntime.InferenceSession, "create_ortvalue_from_shape_and_type"),
    reason="ONNX Runtime before 1.32 reserves no memory from Python",
)
MIB = 2**20
WIDTH = 1024
LAYERS = 6
"""The width of layers with WIDTH x WIDTH weights, 4 MiB each."""


def ask(engine, row=(3, 5)):
    ids = np.array([row], np.int64)
    answers = engine.run(
        {"input_ids": ids, "attention_mask": np.ones_like(ids)}, {"embedding": None}
    )
    return answers["embedding"]


@pytest.fixture
def paths(tmp_path):
    return [write(ENCODER, "onnxruntime", tmp_path / name) for name in ("a", "b")]


@pytest.fixture
def opened():
    engines = []

    def open_engine(path, threads=1):
        engines.append(OnnxEngine.open(path, threads))
        return engines[-1]

    yield open_engine
    for engine in engines:
        engine.close()


def shapes(rows, tokens):
    return dict.fromkeys(("input_ids", "attention_mask"), (rows, tokens))


def executed_by(engine, rows, tokens):
    """Return the number of threads of the session that executes inputs of these shapes."""
    used = []

    class Spy:
        def __init__(self, session):
            self._session = session

        def __getattr__(self, name):
            if name == "run_with_iobinding":
                used.append(self._session.get_session_options().intra_op_num_threads)
            return getattr(self._session, name)

    whole, small = engine._session, engine._small
    engine._session, engine._small = Spy(whole), small and Spy(small)
    ids = np.ones((rows, tokens), np.int64)
    engine.run({"input_ids": ids, "attention_mask": ids}, {"embedding": None})
    engine._session, engine._small = whole, small
    return used


@pytest.mark.parametrize(("threads", "pinned"), [(1, ""), (2, "2"), (3, "")])
def test_threads_are_pinned_if_an_execution_uses_all_cores(
    paths, opened, monkeypatch, threads, pinned
):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)
    options = opened(paths[0], threads)._session.get_session_options()
    key = "session.intra_op_thread_affinities"
    if pinned:
        assert options.get_session_config_entry(key) == pinned
    else:
        with pytest.raises(RuntimeError, match="does not have configuration"):
            options.get_session_config_entry(key)


def test_small_executions_use_one_thread_and_large_ones_all(paths, opened, monkeypatch):
    engine = opened(paths[0], 2)
    weights, whole = engine.weights_bytes(), engine.flops(shapes(8, 64))
    monkeypatch.setattr(onnx_engine, "ONE_THREAD_FLOPS", whole // 8)
    assert engine.adapt_threads(shapes(8, 64)).startswith("1 for executions below ")
    assert [executed_by(engine, rows, 64) for rows in (1, 2, 8)] == [[2], [2], [2]]
    assert executed_by(engine, 1, 60) == [1]
    assert engine.weights_bytes() == 2 * weights


def test_graphs_without_large_executions_have_one_session(paths, opened):
    engine, weights = opened(paths[0], 2), opened(paths[1], 1).weights_bytes()
    assert engine.adapt_threads(shapes(1, 4)) == "1 is used, as no execution is large"
    assert executed_by(engine, 1, 4) == [1]
    assert engine.weights_bytes() == weights
    assert engine._session is opened(paths[0], 1)._session


@pytest.mark.parametrize(
    ("threads", "most", "graph", "line"),
    [
        (1, 2**26, True, ""),
        (2, 1, True, ""),
        (2, 2**26, False, "small executions could use 1, if the package onnx "),
    ],
    ids=["one thread", "many weights", "no package onnx"],
)
def test_all_executions_use_all_threads(paths, opened, monkeypatch, threads, most, graph, line):
    engine = opened(paths[0], threads)
    monkeypatch.setattr(onnx_engine, "_MOST_TWICE", most)
    if not graph:
        engine._graph = None
    assert engine.adapt_threads(shapes(1, 4)).startswith(line)
    assert executed_by(engine, 1, 4) == [threads]
    assert engine._small is None


def test_closing_an_engine_releases_both_sessions(paths, opened, monkeypatch):
    monkeypatch.setattr(onnx_engine, "ONE_THREAD_FLOPS", 1)
    # Engines of other tests may have equal graphs.
    monkeypatch.setattr(PROCESS_SESSIONS, "_entries", {})
    first, second = opened(paths[0], 2), opened(paths[1], 2)
    for engine in (first, second):
        engine.adapt_threads(shapes(1, 4))
    sessions = {first._session, first._small}
    assert {second._session, second._small} == sessions
    entries = PROCESS_SESSIONS._entries.values()
    assert sum(entry.session in sessions for entry in entries) == 2
    first.close()
    second.close()
    assert not any(entry.session in sessions for entry in entries)


@pytest.fixture
def arena():
    """One that no model of another test is in."""
    return OnnxArena(import_onnxruntime())


def test_equal_files_share_a_session_that_the_last_of_them_closes(paths, opened):
    first, second = map(opened, paths)
    assert first._session is second._session
    first.close()
    first.close()
    np.testing.assert_allclose(ask(second), encode([(3, 5)]), rtol=1e-6)


@reserving
def test_what_an_execution_takes_is_measured_by_the_page(opened, tmp_path):
    path = tmp_path / "model.onnx"
    node = helper.make_node
    model = onnx_model(
        [
            node("Sin", ["x"], ["sin"]),
            node("Cos", ["x"], ["cos"]),
            node("Sub", ["sin", "cos"], ["y"]),
        ],
        [("x", TensorProto.FLOAT, ["n"])],
        [("y", TensorProto.FLOAT, ["n"])],
    )
    onnx.save(model, path)
    engine = opened(path)
    x, y = np.ones((2, MIB), np.float32)
    taken = engine.arena.measure(lambda: engine.run({"x": x}, {"y": y}), 8 * MIB)
    # Two results at a time; on a busy machine 10 MiB were seen once, which may be larger pages.
    assert 8 * MIB <= taken <= 12 * MIB


@reserving
def test_the_arena_doubles_until_the_largest_execution_fits(arena):
    arena.join(member := object(), 100 * MIB)
    sizes = []
    for nbytes in (8 * MIB, 4 * MIB, 9 * MIB, 16 * MIB, 100 * MIB, 8 * MIB):
        with arena.execution(nbytes):
            sizes.append(reserved_bytes(arena) / MIB)
    arena.release(member)
    assert sizes == [16, 16, 32, 32, 200, 200]


@reserving
def test_executions_that_overlapped_get_one_region_when_nothing_executes(arena):
    arena.join(member := object(), 8 * MIB)
    with arena.execution(8 * MIB), arena.execution(8 * MIB):
        assert reserved_bytes(arena) == 16 * MIB
    with arena.execution(MIB):
        assert reserved_bytes(arena) == 32 * MIB
    arena.release(member)
    assert reserved_bytes(arena) == 0


@pytest.mark.brute_force
def test_others_wait_while_an_execution_is_measured(arena):
    order = []

    def other():
        with arena.execution(MIB):
            order.append("other")

    thread = Thread(target=other)

    def measured():  # more than once, where something disturbed it
        if thread.ident is None:
            thread.start()
        thread.join(0.05)
        with arena.execution(MIB):
            order.append("measured")

    arena.measure(measured, MIB)
    thread.join()
    assert [*dict.fromkeys(order)] == ["measured", "other"]
    assert order[-1] == "other"


def reserved_bytes(arena):
    return int(repr(arena).split()[1].replace(",", ""))


# ------------------------------------------------ what processes with several models really take

SCRIPT = """
import gc, json, sys
import numpy as np
from ge_runtime import Runtime
from ge_runtime.batching.gears import Gear

def resident():
    gc.collect()  # cyclic garbage of a load is not held
    with open("/proc/self/smaps_rollup") as file:
        (line,) = [line for line in file if line.startswith("Anonymous:")]
    return int(line.split()[1]) * 1024

def opened(folder):
    config = json.loads(sys.argv[1])
    from pathlib import Path
    return Runtime.open(Path(folder), config, instance_name="model")

def filled(runtime):
    x = np.ones((1, 512), np.float32).repeat(2, 1)
    runtime.infer([{"x": x}] * 512)

first = opened(sys.argv[2])
filled(first)
first.close()
before = resident()
runtimes = [opened(folder) for folder in sys.argv[3:]]
for runtime in runtimes * 2:
    filled(runtime)
plan = runtimes[0].plan
print(json.dumps([resident() - before, plan.total_bytes, plan.weights_bytes]))
"""


def layers(folder, seed):
    """A graph of 24 MiB of weights, whose executions of 512 rows hold 16 MiB."""
    rng = np.random.default_rng(seed)
    nodes, weights, last = [], {}, "x"
    for layer in range(LAYERS):
        weights[f"w{layer}"] = rng.random((WIDTH, WIDTH), np.float32) / WIDTH
        nodes += [
            helper.make_node("MatMul", [last, f"w{layer}"], [f"m{layer}"]),
            helper.make_node("Softmax", [f"m{layer}"], [f"s{layer}"]),
        ]
        last = f"s{layer}"
    nodes.append(helper.make_node("ReduceMean", [last], ["y"], axes=[1], keepdims=1))
    folder.mkdir()
    onnx.save(
        onnx_model(
            nodes,
            [("x", TensorProto.FLOAT, ["batch", WIDTH])],
            [("y", TensorProto.FLOAT, ["batch", 1])],
            weights,
        ),
        folder / "model.onnx",
    )
    return str(folder)


CONFIG = {
    "name": "layers",
    "max_batch_size": 512,
    "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [WIDTH]}],
    "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [1]}],
    "parameters": {
        "cost": {"string_value": "launch_us=50, element_ns=20, element2_ns=0"},
        "intra_op_threads": {"string_value": "1"},
    },
}


def resident_with(first, *folders):
    """Return the additional bytes of these models, the plan of one model, and its weights."""
    command = [sys.executable, "-c", SCRIPT, json.dumps(CONFIG), first, *folders]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("layers")
    return [layers(root / str(seed), seed) for seed in range(5)]


@pytest.mark.slow
def test_four_models_take_their_weights_and_one_workspace(folders):
    four, planned, weights = resident_with(*folders)
    assert four == pytest.approx(planned + 3 * weights, rel=0.1)
