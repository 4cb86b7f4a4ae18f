"""Who executes what, and who is to blame.

A `window` of requests becomes launches. `callers` says who waits for an answer and whether they
still do, `dispatch` chooses among lanes, a `lane` executes one batch at a time, `pooled` leases its
workspace, and `isolation` finds the requests that make an execution fail. `warmup` is for the load.
"""
