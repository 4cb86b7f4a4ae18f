"""Verification of a loaded model by executing it.

`elements` draws random tensors, `distance` compares answers and bounds rounding, `probes` chooses
the requests and executions to try, and `load_check` executes, compares and refuses a model whose
answers depend on padding or on the other requests of an execution.
"""
