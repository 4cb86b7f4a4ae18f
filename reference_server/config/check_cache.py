"""Which models can use the response cache, with Triton's texts."""

from __future__ import annotations

from tritonclient.grpc.model_config_pb2 import ModelConfig as ConfigProto

from reference_server.core.errors import invalid_arg


def check_response_cache(config: ConfigProto) -> None:
    """Raise ServerError if the model asks for the response cache, and its answers do not fit."""
    if not config.response_cache.enable:
        return
    if config.HasField("sequence_batching"):
        raise _no_cache(config.name, "sequence batching scheduler")
    if config.model_transaction_policy.decoupled:
        raise _no_cache(config.name, "'decoupled' transaction policy")


def _no_cache(model: str, reason: str) -> Exception:
    return invalid_arg(
        f"Response Cache does not currently support model {model} with {reason}. "
        "Please disable the response cache."
    )
