"""Who executes what, and who is to blame.

`callers` says who waits for an answer and whether they still do, `isolation` finds the requests
that make an execution fail, `dispatch` chooses among devices.
"""
