"""Rewrites of ONNX graphs that keep the inputs and outputs of the graph."""
