"""Models of Triton's own backends, executed here: `onnxruntime` and `pytorch`, by their rules.

docs/backends.md says what is held against which public source.
"""
