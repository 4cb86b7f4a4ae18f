"""Engines: the port that all implement, how one is chosen for a model's files, and its opening.

torch and onnxruntime are imported when an engine that needs them is opened, never before.
"""
