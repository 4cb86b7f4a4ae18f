"""The folder from which `import triton_python_backend_utils` is served."""

from __future__ import annotations

from pathlib import Path


def shim_directory() -> Path:
    """The folder to put on `sys.path` so that code outside any server finds the module.

    For example in a `conftest.py`, before it imports a `model.py`.
    """
    return Path(__file__).parent
