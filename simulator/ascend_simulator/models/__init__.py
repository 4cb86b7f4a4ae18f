"""Simulated models: the .om file, loading, the gear that is set, execution."""
