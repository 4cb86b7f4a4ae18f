"""Builds the artifacts of `model_repository/`: nothing large is committed, everything is made here.

Part of the set-up, never of serving: no model and no server imports this package.
"""
