"""NVIDIA GPUs: what engines share of NVIDIA's driver.

What executes on it are other people's libraries, ONNX Runtime and torch, which have contexts,
streams and memory of their own making. Written from NVIDIA's documents, and never run on a GPU:
tests hold it against a fake of the driver's library.
"""
