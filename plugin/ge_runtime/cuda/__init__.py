"""NVIDIA GPUs: the driver calls that engines share.

ONNX Runtime and torch execute on the GPU, and create their own contexts, streams and memory.
Written from NVIDIA's documentation, and never run on a GPU: the tests use a fake of the driver's
library.
"""
