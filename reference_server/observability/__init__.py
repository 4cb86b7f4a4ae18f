"""What an operator sees: per-model statistics and log lines in Triton's format."""
