"""Checks of a server against the Open Inference Protocol and Triton's extensions."""
