"""Completes a configuration with defaults, as Triton does before it checks or loads a model.

If the configuration names no backend, the backend is derived from the platform or the model's
files. The defaults for the backends of Triton's containers were read from tritonserver 2.51.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig as ConfigProto
from tritonclient.grpc.model_config_pb2 import ModelInstanceGroup

from reference_server.config import json_form
from reference_server.config.rule import Faults, rule
from reference_server.core.errors import invalid_arg

_DEFAULT_IDLE_US = 1_000_000
PYTHON_FILE = "model.py"


@dataclass(frozen=True, slots=True)
class _Kind:
    """A type of model that Triton knows by name: its backend, platform and file."""

    backend: str
    platform: str
    filename: str
    cpu_instances: int = 1
    """The number of instances of a group without `count`."""


#: In the order in which Triton searches for their files.
_KINDS = (
    _Kind("tensorflow", "tensorflow_savedmodel", "model.savedmodel", 2),
    _Kind("tensorflow", "tensorflow_graphdef", "model.graphdef", 2),
    _Kind("tensorrt", "tensorrt_plan", "model.plan"),
    _Kind("onnxruntime", "onnxruntime_onnx", "model.onnx", 2),
    _Kind("openvino", "", "model.xml"),
    _Kind("pytorch", "pytorch_libtorch", "model.pt"),
    _Kind("python", "", PYTHON_FILE),
)

PLATFORMS = ("ensemble", *(kind.platform for kind in _KINDS if kind.platform))
_CPU_INSTANCES = {kind.backend: kind.cpu_instances for kind in _KINDS}


def complete(config: ConfigProto, model_directory: Path) -> None:
    """Fill in the defaults of `config`, in place.

    Args:
        config: The configuration as read.
        model_directory: The model's folder. Its name is the default of the model's name, and its
            files decide which backend the model is for.
    """
    if not config.name:
        config.name = model_directory.name
    if not config.HasField("version_policy"):
        config.version_policy.latest.num_versions = 1
    if config.platform == "ensemble":
        config.model_transaction_policy.SetInParent()
        for step in config.ensemble_scheduling.step:
            step.model_namespace = ""  # steps search in all repositories
        return
    _complete_kind(config, model_directory)
    for field in ("input_pinned_memory", "output_pinned_memory"):
        if not config.optimization.HasField(field):
            getattr(config.optimization, field).enable = True
    _complete_instance_groups(config)
    _complete_schedulers(config)


def _complete_kind(config: ConfigProto, model_directory: Path) -> None:
    """Fill in backend, platform and file name, each of which can determine the others."""
    kind = _kind_of(config, model_directory)
    if kind is not None:
        config.backend = kind.backend
        config.platform = config.platform or kind.platform
        config.default_model_filename = config.default_model_filename or kind.filename
    elif not (config.backend or config.platform) and "." in config.name:
        config.backend = config.name.rpartition(".")[2]
        config.default_model_filename = config.default_model_filename or f"model.{config.backend}"


def _kind_of(config: ConfigProto, model_directory: Path) -> _Kind | None:
    """Return the type of model that the configuration names, or else the type of its files."""
    if config.backend:
        # A backend with two platforms determines no type unless the platform is named.
        kinds = [kind for kind in _KINDS if kind.backend == config.backend]
        named = [kind for kind in kinds if kind.platform == config.platform]
        return next(iter(named), kinds[0] if len(kinds) == 1 else None)
    if config.platform:
        return next((kind for kind in _KINDS if kind.platform == config.platform), None)
    if config.default_model_filename:
        present = {config.default_model_filename}
    else:
        present = {path.name for path in model_directory.glob("*/model.*")}
    return next((kind for kind in _KINDS if kind.filename in present), None)


def _complete_instance_groups(config: ConfigProto) -> None:
    if not config.instance_group:
        config.instance_group.add(name=config.name)
    for index, group in enumerate(config.instance_group):
        group.name = group.name or f"{config.name}_{index}"
        if group.kind == ModelInstanceGroup.KIND_AUTO:
            group.kind = ModelInstanceGroup.KIND_CPU
        if group.count < 1:
            on_cpu = group.kind == ModelInstanceGroup.KIND_CPU
            group.count = _CPU_INSTANCES.get(config.backend, 1) if on_cpu else 1


def _complete_schedulers(config: ConfigProto) -> None:
    """Fill in scheduler defaults; called again after a model chose a scheduler itself."""
    if config.HasField("dynamic_batching"):
        batching = config.dynamic_batching
        if not batching.preferred_batch_size and config.max_batch_size > 0:
            batching.preferred_batch_size.append(config.max_batch_size)
    if config.HasField("sequence_batching"):
        sequences = config.sequence_batching
        if not sequences.max_sequence_idle_microseconds:
            sequences.max_sequence_idle_microseconds = _DEFAULT_IDLE_US
        if sequences.HasField("oldest") and config.max_batch_size > 0:
            sizes = sequences.oldest.preferred_batch_size
            if not sizes:
                sizes.append(config.max_batch_size)


def adopt_auto_completed(config: ConfigProto, completed: str) -> bool:
    """Copy into `config` the fields that a model's `auto_complete_config` may change.

    These are max_batch_size, inputs, outputs, the decoupled policy, and a scheduler if none is set.
    As in Triton, other changes are ignored.

    Args:
        config: The configuration to change, in place.
        completed: The JSON of the configuration that the model returned.

    Returns:
        False if `completed` is not a valid model configuration. `config` is then unchanged.
    """
    try:
        parsed = json_form.read(completed)
    except ValueError:
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


@rule
def check_platform(config: ConfigProto) -> Faults:
    """Check that platform and backend of a completed configuration belong together."""
    if not config.backend:
        yield invalid_arg(
            f"unexpected platform type '{config.platform}' for {config.name}", "platform"
        )
    platforms = [
        kind.platform for kind in _KINDS if kind.platform and kind.backend == config.backend
    ]
    if platforms and config.platform not in platforms:
        yield invalid_arg(
            f"unexpected 'platform' and 'backend' pair, got:{config.platform}, {config.backend}",
            "platform" if config.platform else "backend",
        )
