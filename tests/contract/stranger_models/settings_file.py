"""A YAML file beside the model."""

from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils
import yaml


class TritonPythonModel:
    def initialize(self, args):
        self.settings = yaml.safe_load(Path(__file__).with_name("settings.yaml").read_text())

    def execute(self, requests):
        text = np.array([str(self.settings)], dtype=object)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", text)]) for _ in requests]
