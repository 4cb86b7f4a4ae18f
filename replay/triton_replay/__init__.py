"""Record, replay and compare the traffic of a Triton inference server, and generate load.

Works with any server of the v2 protocol over HTTP and gRPC. docs/replay.md describes the commands
and the capture format.
"""
