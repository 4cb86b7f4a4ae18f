"""A Python-based backend: returns where its code and its model's files are."""

import json

import helper
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "X", "data_type": "TYPE_FP32", "dims": [1]})
        config.add_output({"name": "told", "data_type": "TYPE_STRING", "dims": [1]})
        return config

    def initialize(self, args):
        if "boom" in args["model_name"]:
            raise RuntimeError("boom")
        config = json.loads(args["model_config"])
        self.told = {
            "module": [__name__, __file__, __package__],
            "args": {name: value for name, value in args.items() if name != "model_config"},
            "folder": pb_utils.get_model_dir(),
            "helper": helper.WHO,
            "config": [config["runtime"], config["default_model_filename"]],
        }

    def execute(self, requests):
        text = json.dumps(self.told).encode()
        told = pb_utils.Tensor("told", np.array([text], dtype=object))
        return [pb_utils.InferenceResponse([told]) for _ in requests]
