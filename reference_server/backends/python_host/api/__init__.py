"""The model API: what `triton_python_backend_utils` consists of.

Models see these names through the module of that name beside this package, hosts use the modules
here. Nothing in this package needs a server: it imports `reference_server.core` and NumPy only, so
a model's process and a user's tests can import it too. Names with one leading underscore are for
the hosts.
"""
