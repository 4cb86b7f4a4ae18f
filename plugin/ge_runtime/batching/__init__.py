"""Batches of requests of any shapes: made of requests, and taken apart into answers.

`admission` checks and measures each request, `partition` decides which share an execution and at
which of the `gears`, `ragged` lays rows of different sizes into one batch and takes answers apart,
`feeds` are the graph inputs that a batch consists of.
"""
