"""Recording: a proxy that forwards bytes at once and records the traffic beside them."""
