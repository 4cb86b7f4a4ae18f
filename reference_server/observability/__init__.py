"""What an operator sees: statistics, metrics, traces, log lines."""
