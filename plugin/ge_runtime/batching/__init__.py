"""Builds batches from requests of any shapes, and splits results into answers.

`admission` checks and measures each request. `partition` decides which requests share an execution,
and at which of the `gears`. `ragged` copies rows of different sizes to one batch, and results to
answers. `feeds` writes the graph inputs of a batch.
"""
