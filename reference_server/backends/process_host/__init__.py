"""The process host: each instance of a Python model lives in a process of its own, as in Triton.

In the child runs the very instance that the inline host runs; all that it asks of the server comes
back over one socket, and tensors lie in memory that both processes map.
"""
