"""What executes a graph: the port that all engines implement, and how one is chosen and opened.

torch and onnxruntime are imported when an engine that needs them is opened, never before.
"""
