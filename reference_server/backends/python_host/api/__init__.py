"""The model API: the classes and functions of `triton_python_backend_utils`.

Models import them through `reference_server.backends.python_host.triton_python_backend_utils`;
the hosts import the modules of this package. The package needs no server. It imports only
`reference_server.core` and NumPy, so that a model's process and a user's tests can import it too.
Names with one leading underscore are for the hosts.
"""
