"""Resizes images."""


class Resizer:
    """Triton looks for `TritonPythonModel`."""
