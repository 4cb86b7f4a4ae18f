"""The arguments of `initialize`: paths, names, and the configuration with its parameters."""

import json
import os

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        folder = os.path.join(args["model_repository"], args["model_version"])
        output = pb_utils.get_output_config_by_name(config, "TEXT")
        self.told = [
            config["parameters"]["max_length"]["string_value"],
            os.path.isfile(os.path.join(folder, "model.py")),
            args["model_instance_name"],
            pb_utils.triton_string_to_numpy(output["data_type"]).__name__,
        ]

    def execute(self, requests):
        text = np.array([str(self.told)], dtype=object)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", text)]) for _ in requests]
