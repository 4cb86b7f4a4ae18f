"""Completes a configuration, as Triton does before it checks or loads anything.

Also tells which backend a model is for where its configuration does not: by platform, by files.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tritonclient.grpc.model_config_pb2 import ModelConfig as ConfigProto
from tritonclient.grpc.model_config_pb2 import ModelInstanceGroup

from reference_server.config import json_reader
from reference_server.core.errors import invalid_arg

_DEFAULT_IDLE_US = 1_000_000
PYTHON_FILE = "model.py"
_BACKENDS = {
    "onnxruntime_onnx": "onnxruntime",
    "pytorch_libtorch": "pytorch",
    "tensorflow_graphdef": "tensorflow",
    "tensorflow_savedmodel": "tensorflow",
    "tensorrt_plan": "tensorrt",
}
#: In the order in which Triton looks for them.
_FILES = (
    ("model.savedmodel", "tensorflow"),
    ("model.graphdef", "tensorflow"),
    ("model.plan", "tensorrt"),
    ("model.onnx", "onnxruntime"),
    ("model.xml", "openvino"),
    ("model.pt", "pytorch"),
    (PYTHON_FILE, "python"),
)


def complete(config: ConfigProto, model_directory: Path) -> None:
    """Fill `config` in place; `model_directory` names the model and shows what files it has."""
    if not config.name:
        config.name = model_directory.name
    if not config.HasField("version_policy"):
        config.version_policy.latest.num_versions = 1
    if config.platform == "ensemble":
        config.model_transaction_policy.SetInParent()
        for step in config.ensemble_scheduling.step:
            step.model_namespace = ""  # there are none: names are looked up in all repositories
        return
    if not config.backend and not config.platform:
        config.backend = _backend_of_files(model_directory)
        if not config.backend and "." in config.name:
            config.backend = config.name.rpartition(".")[2]
            config.default_model_filename = (
                config.default_model_filename or f"model.{config.backend}"
            )
    if not config.default_model_filename and config.backend == "python":
        config.default_model_filename = PYTHON_FILE
    for field in ("input_pinned_memory", "output_pinned_memory"):
        if not config.optimization.HasField(field):
            getattr(config.optimization, field).enable = True
    _complete_instance_groups(config)
    _complete_schedulers(config)


def _complete_instance_groups(config: ConfigProto) -> None:
    if not config.instance_group:
        config.instance_group.add(name=config.name)
    for index, group in enumerate(config.instance_group):
        group.name = group.name or f"{config.name}_{index}"
        group.count = max(1, group.count)
        if group.kind == ModelInstanceGroup.KIND_AUTO:
            group.kind = ModelInstanceGroup.KIND_CPU


def _complete_schedulers(config: ConfigProto) -> None:
    """Defaults of the scheduler settings; needed again when a model chose a scheduler itself."""
    if config.HasField("dynamic_batching"):
        batching = config.dynamic_batching
        if not batching.preferred_batch_size and config.max_batch_size > 0:
            batching.preferred_batch_size.append(config.max_batch_size)
    _complete_sequences(config)


def _complete_sequences(config: ConfigProto) -> None:
    """Fill in what Triton does; a model without sequences is left alone."""
    if not config.HasField("sequence_batching"):
        return
    batching = config.sequence_batching
    batching.max_sequence_idle_microseconds = (
        batching.max_sequence_idle_microseconds or _DEFAULT_IDLE_US
    )
    if batching.HasField("oldest") and config.max_batch_size > 0:
        sizes = batching.oldest.preferred_batch_size
        if not sizes:
            sizes.append(config.max_batch_size)


def adopt_auto_completed(config: ConfigProto, completed: dict[str, Any]) -> bool:
    """Take over what a model's `auto_complete_config` may decide; drop the rest.

    That is: max_batch_size, inputs, outputs, a scheduler if none was set, and the decoupled
    policy. If `completed` is no model configuration at all, nothing of it is taken, as in Triton,
    and the result is False.
    """
    # A model may have changed any key of the dictionary; Triton takes these and drops the others.
    try:
        parsed = json_reader.read(json.dumps(completed))
    except (TypeError, ValueError):
        return False
    config.max_batch_size = parsed.max_batch_size
    del config.input[:]
    config.input.extend(parsed.input)
    del config.output[:]
    config.output.extend(parsed.output)
    scheduler = parsed.WhichOneof("scheduling_choice")
    if config.WhichOneof("scheduling_choice") is None and scheduler is not None:
        getattr(config, scheduler).CopyFrom(getattr(parsed, scheduler))
    if parsed.HasField("model_transaction_policy"):
        config.model_transaction_policy.CopyFrom(parsed.model_transaction_policy)
    _complete_schedulers(config)
    return True


def _backend_of_files(model_directory: Path) -> str:
    """The backend that the files in the version folders are for; "" if none is known."""
    present = {path.name for path in model_directory.glob("*/model.*")}
    for name, backend in _FILES:
        if name in present:
            return backend
    return ""


def backend_of_platform(platform: str, model: str) -> str:
    """The backend that `platform` is served by. Raises ServerError for one that is none."""
    backend = _BACKENDS.get(platform)
    if backend is None:
        raise invalid_arg(f"unexpected platform type '{platform}' for {model}")
    return backend
