"""The package as a whole: its public names, its layers, what it imports."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import ge_runtime

ROOT = Path(ge_runtime.__file__).parent

# Each room with those that it may import, itself always included.
LAYERS = {
    "errors": set(),
    "specs": {"errors"},
    "config": {"errors", "specs"},
    "memory": {"errors", "specs"},
    "batching": {"errors", "specs"},
    "engines": {"errors", "specs", "config", "memory", "batching"},
    "runtime": {"errors", "specs", "config", "memory", "batching", "engines"},
    "adapters": {"errors", "specs", "config", "batching", "runtime"},
}


def test_public_names_are_these():
    assert sorted(ge_runtime.__all__) == [
        "Answer",
        "ArtifactFault",
        "ConfigFault",
        "DType",
        "EngineFault",
        "PlanFault",
        "RequestFault",
        "Runtime",
        "RuntimeClosed",
        "RuntimeConfig",
        "RuntimeFault",
        "ShapeMismatch",
        "TensorSpec",
    ]


@pytest.mark.parametrize("room", LAYERS)
def test_imports_run_one_way(room):
    files = [ROOT / f"{room}.py"] if (ROOT / f"{room}.py").exists() else (ROOT / room).rglob("*.py")
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom):
                names = [node.module]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                continue
            for name in names:
                package, _, rest = name.partition(".")
                if package == "ge_runtime":
                    assert rest.split(".")[0] in LAYERS[room] | {room}, f"{file} imports {name}"
                assert "triton" not in name or room == "adapters", f"{file} imports {name}"


def test_every_room_has_a_layer():
    rooms = {entry.stem for entry in ROOT.iterdir() if entry.suffix in {"", ".py"}}
    assert rooms - {"__init__", "__pycache__"} == LAYERS.keys()


def test_no_engine_is_imported_before_one_is_opened():
    code = (
        "import sys, ge_runtime, ge_runtime.adapters.triton\n"
        "assert not {'torch', 'onnxruntime'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT.parent)
