"""The command line: options in Triton's spelling, checks before the start, and exit codes."""
