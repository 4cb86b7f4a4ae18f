"""The inline host: runs the `model.py` files of a Triton model repository unchanged."""
