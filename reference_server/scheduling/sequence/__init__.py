"""Sequences: which requests belong together, where they wait, and what is added to them."""
