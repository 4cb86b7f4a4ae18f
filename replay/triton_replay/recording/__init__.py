"""Recording: a proxy that forwards bytes at once, and records them afterwards."""
