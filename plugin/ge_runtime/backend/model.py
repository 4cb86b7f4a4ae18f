"""The backend "ge": executes the artifacts of models with ge_runtime."""

import triton_python_backend_utils as pb_utils

from ge_runtime.adapters.generation import open_model
from ge_runtime.adapters.triton import GraphModel


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        return GraphModel.complete(config, pb_utils)

    def initialize(self, args):
        self._graph = open_model(args, pb_utils)

    def execute(self, requests):
        return self._graph.execute(requests)

    def is_ready(self):
        return self._graph.is_ready()

    def finalize(self):
        self._graph.close()
