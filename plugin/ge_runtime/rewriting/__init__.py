"""Rewrites of ONNX graphs: from one graph to another with the same inputs and outputs."""
