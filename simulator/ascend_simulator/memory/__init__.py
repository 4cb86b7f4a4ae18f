"""Device and pinned memory: blocks at addresses, what touches them, and in which order."""
