"""Models of Triton's backends `onnxruntime`, `openvino` and `pytorch`, executed by their rules.

docs/backends.md says what is held against which public source.
"""
