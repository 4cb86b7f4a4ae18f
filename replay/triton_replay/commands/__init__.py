"""The commands of `triton-replay`, one per module."""
