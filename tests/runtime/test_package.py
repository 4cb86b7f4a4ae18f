"""The package as a whole: its public names, and the modules it imports."""

import subprocess
import sys
from pathlib import Path

import pytest

import ge_runtime

ROOT = Path(ge_runtime.__file__).parent


def test_the_public_names():
    assert sorted(ge_runtime.__all__) == [
        "Answer",
        "ArtifactFault",
        "Caller",
        "ConfigFault",
        "DType",
        "EngineFault",
        "EngineLost",
        "PlanFault",
        "RequestFault",
        "Runtime",
        "RuntimeClosed",
        "RuntimeConfig",
        "RuntimeFault",
        "ShapeMismatch",
        "TensorSpec",
    ]


@pytest.mark.brute_force
def test_no_engine_is_imported_before_one_is_opened():
    code = (
        "import sys, ge_runtime, ge_runtime.adapters.triton\n"
        "assert not {'torch', 'onnxruntime'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT.parent)
