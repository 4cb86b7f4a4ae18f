"""Code for Ascend cards, and the service that shares one device between processes.

`driver` calls CANN, `engines` implements the engine ports with `driver`, and `service` executes
models of several processes on one card or GPU.
"""
