"""Comparison of two captures: differing responses, their causes, and latencies."""
