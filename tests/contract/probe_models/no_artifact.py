"""A model of ge_runtime without its artifact; its error has no traceback."""

import triton_python_backend_utils as pb_utils

from ge_runtime.adapters.triton import GraphModel


class TritonPythonModel:
    def initialize(self, args):
        # Both servers send the traceback, whose line numbers in our code would change.
        try:
            self._graph = GraphModel(args, pb_utils)
        except Exception as fault:
            raise RuntimeError(str(fault)) from None
