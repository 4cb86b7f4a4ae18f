"""Loads, and can then do nothing."""


class TritonPythonModel:
    pass
