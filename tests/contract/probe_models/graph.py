"""Delegates everything to ge_runtime."""

import triton_python_backend_utils as pb_utils

from ge_runtime.adapters.triton import GraphModel


class TritonPythonModel:
    def initialize(self, args):
        self._graph = GraphModel(args, pb_utils)

    def execute(self, requests):
        return self._graph.execute(requests)

    def is_ready(self):
        return self._graph.is_ready()

    def finalize(self):
        self._graph.close()
