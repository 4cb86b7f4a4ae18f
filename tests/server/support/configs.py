"""Configurations from the text of a config.pbtxt."""

from __future__ import annotations

from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig as ConfigProto

from reference_server.config.complete import complete
from reference_server.config.schema import ModelConfig


def proto(text: str = "") -> ConfigProto:
    """The message that `text` says, and no more."""
    return text_format.Parse(text, ConfigProto())


def completed(text: str, name: str = "m") -> ConfigProto:
    """The message of a Python model or ensemble in folder `name`, defaults filled in."""
    config = proto(text)
    if not config.platform and not config.backend:
        config.backend = "python"
    complete(config, Path(name))
    return config


def model_config(text: str, name: str = "m") -> ModelConfig:
    """The frozen configuration that the server would work with."""
    return ModelConfig.from_proto(completed(text, name))


def step(model: str, inputs: dict[str, str], outputs: dict[str, str], version: int = -1) -> str:
    """One step of an ensemble; tensors of the model to tensors of the ensemble."""
    maps = [
        f'{kind} {{ key: "{key}" value: "{value}" }}'
        for kind, pairs in (("input_map", inputs), ("output_map", outputs))
        for key, value in pairs.items()
    ]
    return f'step {{ model_name: "{model}" model_version: {version} {" ".join(maps)} }}'


def ensemble(*steps: str, inputs: str = "I", outputs: str = "O", more: str = "") -> str:
    """An ensemble over FP32 `[-1]` tensors; each letter of `inputs` and `outputs` is one."""
    tensors = [
        f'{kind} {{ name: "{name}" data_type: TYPE_FP32 dims: [-1] }}'
        for kind, names in (("input", inputs), ("output", outputs))
        for name in names
    ]
    scheduling = f"ensemble_scheduling {{ {' '.join(steps)} }}"
    return "\n".join(['platform: "ensemble"', *tensors, scheduling, more])
