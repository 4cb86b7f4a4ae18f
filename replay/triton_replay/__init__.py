"""Records the traffic of a Triton inference server, sends it again, and compares the answers.

Works with any server of the v2 protocol and imports none. docs/replay.md describes the commands,
the rooms and the capture format.
"""
