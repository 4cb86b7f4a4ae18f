"""The Python backend: runs the `model.py` files of a Triton model repository unchanged."""
