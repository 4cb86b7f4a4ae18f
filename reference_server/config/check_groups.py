"""The rules for instance groups, on a machine on which models are given no GPU."""

from __future__ import annotations

from tritonclient.grpc.model_config_pb2 import ModelConfig as ConfigProto
from tritonclient.grpc.model_config_pb2 import ModelInstanceGroup

from reference_server.core.errors import invalid_arg


def check_given(config: ConfigProto) -> None:
    """Raise ServerError for a group that cannot be served."""
    for group in config.instance_group:
        what = f"instance group {group.name} of model {config.name}"
        kind = ModelInstanceGroup.Kind.Name(group.kind)
        if group.kind != ModelInstanceGroup.KIND_GPU:
            if group.gpus:
                raise invalid_arg(f"{what} has kind {kind} but specifies one or more GPUs")
        elif not group.gpus:
            raise invalid_arg(f"{what} has kind KIND_GPU but no GPUs are available")
        else:
            raise invalid_arg(
                f"{what} specifies invalid or unsupported gpu id {group.gpus[0]}. GPUs with at "
                "least the minimum required CUDA compute compatibility of 6.000000 are: "
            )
        if group.profile:
            raise invalid_arg(
                f"{what} and platform {config.platform}specifies profile field which is only "
                "supported for TensorRT models"
            )
