"""What a graph holds in memory while it runs, told from its file: nothing is executed."""
