"""The sequence batcher: slots and backlog, the two strategies, control inputs and states."""
