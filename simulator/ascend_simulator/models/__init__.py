"""Simulated models: the .om file, loading, gears and execution."""
