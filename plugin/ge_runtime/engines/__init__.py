"""Engines: the port that all engines implement, and how the engine of a model is chosen and opened.

torch and onnxruntime are imported only when an engine that needs them is opened.
"""
