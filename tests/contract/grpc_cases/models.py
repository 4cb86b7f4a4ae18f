"""Health, metadata, configuration, statistics, and invalid messages to every method."""

from __future__ import annotations

from contract.grpc_casebook import chapter, messages, rpc
from tritonclient.grpc import service_pb2 as pb

HEALTH = "/grpc.health.v1.Health/"
UNREADABLE = "Unable to parse request"

# The methods about a model, and their response for an unknown model.
ABOUT_MODELS = {
    "ModelReady": (pb.ModelReadyRequest, "OK"),
    "ModelMetadata": (pb.ModelMetadataRequest, "NOT_FOUND"),
    "ModelConfig": (pb.ModelConfigRequest, "NOT_FOUND"),
    "ModelStatistics": (pb.ModelStatisticsRequest, "INVALID_ARGUMENT"),
}
METHODS = [
    *("ServerLive", "ServerReady", "ServerMetadata", *ABOUT_MODELS, "ModelInfer"),
    *("SystemSharedMemoryStatus", "SystemSharedMemoryRegister", "SystemSharedMemoryUnregister"),
    *("CudaSharedMemoryStatus", "CudaSharedMemoryRegister", "CudaSharedMemoryUnregister"),
]
# By kind: a version as text, and the real server's reading of it.
VERSIONS = {
    "a version": ("1", "OK"),
    "spaces before": (" \t1", "OK"),
    "letters behind": ("1x", "OK"),
    "a sign": ("+1", "OK"),
    "zeros before": ("0001", "OK"),
    "a fraction": ("1.9", "OK"),
    "letters": ("abc", "INVALID_ARGUMENT"),
    "spaces alone": (" ", "INVALID_ARGUMENT"),
    "a sign alone": ("-", "INVALID_ARGUMENT"),
    "a space behind the sign": ("+ 1", "INVALID_ARGUMENT"),
    "other digits": ("１", "INVALID_ARGUMENT"),
    "too large": ("9223372036854775808", "INVALID_ARGUMENT"),
    "too small": ("-9223372036854775809", "INVALID_ARGUMENT"),
    "forty digits": ("9" * 40, "INVALID_ARGUMENT"),
    "minus one": ("-1", "INVALID_ARGUMENT"),
    "the least": ("-9223372036854775808", "INVALID_ARGUMENT"),
}
# Versions that no model has.
ABSENT = {"zero": "0", "minus zero": "-0", "another": "9", "the largest": "9223372036854775807"}
CONFIGURED = [
    *("vector", "batched", "ragged", "pair", "optional", "reshaped", "text", "labelled", "types"),
    *("elaborate", "versions", "chain", "fork", "outer_chain"),
]
NOT_LOADED = ["fails_to_start", "misspelt", "no_version", "missing_step"]


@messages
def without_counts(message):
    """Forget the counts, which depend on other cases."""
    for model in message.model_stats:
        model.last_inference = model.inference_count = model.execution_count = 0
        model.ClearField("batch_stats")
        for duration in (
            *(model.inference_stats.success, model.inference_stats.fail),
            *(model.inference_stats.queue, model.inference_stats.compute_input),
            *(model.inference_stats.compute_infer, model.inference_stats.compute_output),
        ):
            duration.Clear()


def about(method, name, code="OK", *, model="vector", version=""):
    request_type, _ = ABOUT_MODELS[method]
    more = {"unstable": without_counts} if method == "ModelStatistics" else {}
    return rpc(f"{method} {name}", method, request_type(name=model, version=version), code, **more)


CASES = [
    *chapter(
        "server",
        rpc("live", "ServerLive", b""),
        rpc("ready", "ServerReady", b""),
        rpc("metadata", "ServerMetadata", b""),
        rpc("health", HEALTH + "Check", b""),
        rpc("health of a service", HEALTH + "Check", b"\n\x03abc"),
        rpc("health is not watched", HEALTH + "Watch", b"", "UNIMPLEMENTED"),
        rpc("unknown method", "Nothing", b"", "UNIMPLEMENTED"),
        rpc("method in small letters", "serverLive", b"", "UNIMPLEMENTED"),
        rpc("unknown service", "/a.B/c", b"", "UNIMPLEMENTED"),
        rpc("path without a method", "/inference.GRPCInferenceService/", b"", "UNIMPLEMENTED"),
        rpc(
            "no reflection",
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
            b"",
            "UNIMPLEMENTED",
        ),
    ),
    *chapter(
        "message",
        (rpc(f"{m} cut", m, b"\x0a", "INTERNAL") for m in METHODS),
        (rpc(f"{m} of no kind", m, b"\xff\xff", "INTERNAL") for m in METHODS),
        rpc("of the health check", HEALTH + "Check", b"\xff", "INTERNAL"),
        rpc("text that is not UTF-8", "ModelReady", b"\n\x02\xff\xfe", "INTERNAL"),
        rpc("an unknown field", "ServerLive", b"\xa0\x06\x01"),
        rpc("a field of another type", "ModelReady", b"\x08\x01"),
        rpc("a field twice", "ModelReady", b"\n\x01x\n\x06vector"),
    ),
    *chapter(
        "version",
        (
            about(method, what, code, version=text)
            for method in ABOUT_MODELS
            for what, (text, code) in VERSIONS.items()
        ),
        (
            about(method, what, code, version=text)
            for method, (_, code) in ABOUT_MODELS.items()
            for what, text in ABSENT.items()
        ),
        (
            about(method, "before the model", "INVALID_ARGUMENT", model="nobody", version="x")
            for method in ABOUT_MODELS
        ),
    ),
    *chapter(
        "model",
        (
            about(method, f"of {model}", code, model=model)
            for method, (_, code) in ABOUT_MODELS.items()
            for model in ["nobody", "Vector", "vector/1", "数字", *NOT_LOADED]
        ),
        (
            about(method, f"of {model}", model=model)
            for method in ABOUT_MODELS
            for model in CONFIGURED
        ),
        (about(method, "of version 1", model="versions", version="1") for method in ABOUT_MODELS),
        about("ModelReady", "of no name", model=""),
        about("ModelMetadata", "of no name", "NOT_FOUND", model=""),
        about("ModelConfig", "of no name", "NOT_FOUND", model=""),
        about("ModelStatistics", "of all", model=""),
    ),
]
