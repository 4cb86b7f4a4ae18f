"""Build the artifacts of `model_repository/`, which are too large to be committed.

This package belongs to the set-up: no model and no server imports it.
"""
