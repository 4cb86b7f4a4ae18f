"""Derives the configuration of an ONNX graph from its signature and from executions."""
