"""The memory of the repository's models equals the plan, as in docs/results/memory.md."""

import json
import subprocess
import sys

import pytest
from support.servers import ROOT

SMALL = ["--tokens", "128", "--rows", "8", "--side", "128", "--counts", "1", "2"]
#: Models together in one process are those of tests/runtime/engines/test_onnx_sharing.py.
PARTS = ["--parts", "models", "service"]
#: Each kind of graph once.
PROGRAM = """
from benchmarks import memory
kinds = ("text_encoder", "ge_classifier", "ocr_recognition", "voice_activity")
memory.MODELS = {name: memory.MODELS[name] for name in kinds}
memory.main()
"""
MIB = 2**20


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    path = tmp_path_factory.mktemp("memory") / "memory.json"
    program = [sys.executable, "-c", PROGRAM, *SMALL, *PARTS, "--json", str(path)]
    finished = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return json.loads(path.read_text())


@pytest.mark.slow
def test_every_model_uses_its_planned_memory(report):
    assert len(report["models"]) == 4
    for row in report["models"]:
        # A tenth, and a constant for memory that allocators keep and for session objects; a
        # model may have two sessions, for executions on one thread and on several.
        assert row["busy"] == pytest.approx(row["planned"], rel=0.1, abs=10 * MIB)
        assert row["load"] <= row["planned"] * 1.1 + 10 * MIB


@pytest.mark.slow
def test_equal_models_share_weights_and_different_ones_a_workspace(report):
    one, two = report["service"]
    weights, workspace = one["equal"]["weights"], one["equal"]["busy"] - one["equal"]["weights"]
    assert two["equal"]["busy"] <= 1.25 * one["equal"]["busy"]
    assert two["different"]["busy"] <= 1.1 * (2 * weights + workspace)
