"""The capture: an append-only file of recorded requests and responses."""
