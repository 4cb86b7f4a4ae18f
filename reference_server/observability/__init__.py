"""Statistics, metrics, traces and logs."""
