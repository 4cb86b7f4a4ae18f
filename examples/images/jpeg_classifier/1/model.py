"""The classifier of model_repository/ge_classifier for JPEG files; config.pbtxt says it all."""

import triton_python_backend_utils as pb_utils

from ge_runtime.adapters.triton import GraphModel


class TritonPythonModel:
    """Called by Triton."""

    def initialize(self, args):
        self._graph = GraphModel(args, pb_utils)

    def execute(self, requests):
        return self._graph.execute(requests)

    def is_ready(self):
        return self._graph.is_ready()

    def finalize(self):
        self._graph.close()
