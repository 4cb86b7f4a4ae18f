"""Verification of a loaded model by executing it.

`elements` draws random tensors, `distance` and `arithmetic` compare answers, `probes` makes the
requests, and `load_check` refuses a model whose answers depend on padding or on other requests.
"""
