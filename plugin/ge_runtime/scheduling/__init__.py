"""Who executes what, and who is to blame.

A `request_batch` becomes executions. `callers` says who waits for an answer and whether
they still do, `dispatch` chooses among executors, an `executor` executes one batch at a time,
`pooled` leases its workspace, and `isolation` finds the requests that make an execution fail.
`warmup` is for the load.
"""
