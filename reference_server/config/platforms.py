"""Which backend a model is for, where its configuration does not say: by platform, by files."""

from __future__ import annotations

from pathlib import Path

from reference_server.core.errors import invalid_arg

PYTHON_FILE = "model.py"

_BACKENDS = {
    "onnxruntime_onnx": "onnxruntime",
    "pytorch_libtorch": "pytorch",
    "tensorflow_graphdef": "tensorflow",
    "tensorflow_savedmodel": "tensorflow",
    "tensorrt_plan": "tensorrt",
}
#: In the order in which Triton looks for them.
_FILES = (
    ("model.savedmodel", "tensorflow"),
    ("model.graphdef", "tensorflow"),
    ("model.plan", "tensorrt"),
    ("model.onnx", "onnxruntime"),
    ("model.xml", "openvino"),
    ("model.pt", "pytorch"),
    (PYTHON_FILE, "python"),
)


def backend_of_files(model_directory: Path) -> str:
    """The backend that the files in the version folders are for; "" if none is known."""
    present = {path.name for path in model_directory.glob("*/model.*")}
    for name, backend in _FILES:
        if name in present:
            return backend
    return ""


def backend_of_platform(platform: str, model: str) -> str:
    """The backend that `platform` is served by. Raises ServerError for one that is none."""
    backend = _BACKENDS.get(platform)
    if backend is None:
        raise invalid_arg(f"unexpected platform type '{platform}' for {model}")
    return backend
