"""Executes a batch of requests on one executor or several.

`request_batch` splits the batch into executions. `dispatch` chooses executors, and isolates the
requests that make an execution fail. An `executor` runs one execution at a time.
"""
