"""Adapters between the runtime and the objects of Triton's Python backend."""
