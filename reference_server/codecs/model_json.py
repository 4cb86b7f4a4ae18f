"""Metadata and statistics as the JSON that Triton's HTTP endpoints answer with."""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from reference_server.core.metadata import ModelMetadata, ServerMetadata, Signature, TensorConfig
from reference_server.core.telemetry import Duration, Snapshot

JsonObject = dict[str, object]


def server_metadata(metadata: ServerMetadata) -> bytes:
    """Name, version, extensions."""
    return orjson.dumps(
        {
            "name": metadata.name,
            "version": metadata.version,
            "extensions": metadata.extensions,
        }
    )


def model_metadata(metadata: ModelMetadata) -> bytes:
    """Name, versions, platform, inputs, outputs."""
    signature = metadata.signature
    return orjson.dumps(
        {
            "name": signature.name,
            "versions": [str(version) for version in metadata.versions],
            "platform": metadata.platform,
            "inputs": [_tensor(signature, tensor) for tensor in signature.inputs],
            "outputs": [_tensor(signature, tensor) for tensor in signature.outputs],
        }
    )


def _tensor(signature: Signature, tensor: TensorConfig) -> JsonObject:
    return {
        "name": tensor.name,
        "datatype": tensor.datatype.value,
        "shape": signature.full_dims(tensor),
    }


def statistics(snapshots: Sequence[Snapshot]) -> bytes:
    """The counters of each model version, in the order given."""
    return orjson.dumps({"model_stats": [_model(snapshot) for snapshot in snapshots]})


def _model(snapshot: Snapshot) -> JsonObject:
    return {
        "name": snapshot.name,
        "version": str(snapshot.version),
        "last_inference": snapshot.last_inference_ms,
        "inference_count": snapshot.inference_count,
        "execution_count": snapshot.execution_count,
        "inference_stats": {
            "success": _duration(snapshot.success),
            "fail": _duration(snapshot.fail),
            "queue": _duration(snapshot.queue),
            "compute_input": _duration(snapshot.compute_input),
            "compute_infer": _duration(snapshot.compute_infer),
            "compute_output": _duration(snapshot.compute_output),
            "cache_hit": _duration(snapshot.cache_hit),
            "cache_miss": _duration(snapshot.cache_miss),
        },
        # Triton's Python backend reports no statistics per response, and no memory.
        "response_stats": {},
        "batch_stats": [
            {
                "batch_size": rows,
                "compute_input": _duration(batch.compute_input),
                "compute_infer": _duration(batch.compute_infer),
                "compute_output": _duration(batch.compute_output),
            }
            for rows, batch in snapshot.batches.items()
        ],
        "memory_usage": [],
    }


def _duration(duration: Duration) -> JsonObject:
    return {"count": duration.count, "ns": duration.ns}
