"""Device and pinned memory: blocks at addresses, their uses, and the order of the uses."""
