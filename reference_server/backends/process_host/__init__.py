"""The process host: each instance of a Python model runs in its own process, as in Triton.

The child process runs the instance class of the inline host. Its calls to the server pass through
sockets, and tensors through memory that both processes map.
"""
