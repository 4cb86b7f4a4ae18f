"""A model that resizes images; its class has the wrong name."""


class Resizer:
    """Triton expects the name `TritonPythonModel`."""
