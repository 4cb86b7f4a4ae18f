"""Executions of a batch of requests, on one executor or several.

A `request_batch` is cut into executions. `dispatch` chooses among executors, an `executor` runs one
execution at a time, and `isolation` finds the requests that make an execution fail.
"""
