"""The Python backend: instances of `model.py`, run in the server's process or in their own."""
