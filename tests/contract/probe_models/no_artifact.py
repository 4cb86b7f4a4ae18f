"""A model of ge_runtime without its artifact: it tells the fault, not where it was found."""

import triton_python_backend_utils as pb_utils

from ge_runtime.adapters.triton import GraphModel


class TritonPythonModel:
    def initialize(self, args):
        # Both servers tell the traceback, which would name lines of our own that move.
        try:
            self._graph = GraphModel(args, pb_utils)
        except Exception as fault:
            raise RuntimeError(str(fault)) from None
