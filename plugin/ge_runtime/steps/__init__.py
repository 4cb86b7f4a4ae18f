"""Executes models of Triton's backends `onnxruntime`, `openvino` and `pytorch` by their rules.

docs/backends.md names the public source of each rule.
"""
