"""The models of model_repository/: their metadata and configurations, and their errors.

These are compared byte by byte. test_same_repository.py compares the numbers in good answers.
"""

from __future__ import annotations

import struct

from contract.casebook import (
    binary,
    byte_strings,
    case,
    chapter,
    get,
    infer,
    infer_binary,
    maps_in_any_order,
    tensor,
)

TEXT = tensor("text", "BYTES", [1], ["a good day"])
STEPS = ("tokenizer", "text_encoder", "text_classifier")
MODELS = ("text_pipeline", "text_pipeline_fused", "ge_classifier", *STEPS)


def text_bytes(*elements: bytes, model: str = "text_pipeline") -> bytes:
    """Send these bytes as elements."""
    tail = byte_strings(*elements)
    return infer_binary(model, tail, binary("text", "BYTES", [len(elements)], len(tail)))


def image(*shape: int, datatype: str = "FP32", name: str = "image", values: int = 64) -> bytes:
    """Send `values` black pixels with this shape, which need not fit."""
    tail = struct.pack(f"<{values}f", *[0.0] * values)
    return infer_binary("ge_classifier", tail, binary(name, datatype, list(shape), len(tail)))


CASES = [
    *chapter(
        "real model",
        case("the server is ready", get("/v2/health/ready"), 200),
        *(case(f"metadata of {name}", get(f"/v2/models/{name}"), 200) for name in MODELS),
        *(
            case(
                f"config of {name}",
                get(f"/v2/models/{name}/config"),
                200,
                unstable=maps_in_any_order,
            )
            for name in MODELS
        ),
        *(case(f"ready: {name}", get(f"/v2/models/{name}/ready"), 200) for name in MODELS),
    ),
    *chapter(
        "text_pipeline",
        case("unknown model", infer("text_pipelime", TEXT), 404),
        case("unknown version", infer("text_pipeline/9", TEXT), 404),
        case("unknown input", infer("text_pipeline", TEXT | {"name": "txt"}), 400),
        case("no input", infer("text_pipeline"), 400),
        case("unknown output", infer("text_pipeline", TEXT, outputs=[{"name": "scores"}]), 400),
        case("wrong datatype", infer("text_pipeline", tensor("text", "FP32", [1], [1])), 400),
        case("wrong shape", infer("text_pipeline", tensor("text", "BYTES", [1, 1], ["a"])), 400),
        case(
            "fewer texts than the shape says",
            infer("text_pipeline", tensor("text", "BYTES", [2], ["a"])),
            400,
        ),
        case("text that is not UTF-8", text_bytes(b"\xff\xfe\xfd"), 400),
        case("the second text is not UTF-8", text_bytes(b"fine", b"\xc3"), 400),
        case(
            "a length beyond the end",
            infer_binary("text_pipeline", b"\xff\0\0\0a", binary("text", "BYTES", [1], 5)),
            400,
        ),
    ),
    *chapter(
        "text_pipeline_fused",
        case(
            "the second text is not UTF-8",
            text_bytes(b"fine", b"\xc3", model="text_pipeline_fused"),
            400,
        ),
        case("no text", text_bytes(model="text_pipeline_fused"), 400),
        case("more texts than rows", text_bytes(*[b"a"] * 65, model="text_pipeline_fused"), 400),
    ),
    *chapter(
        "ge_classifier",
        case("unknown version", infer("ge_classifier/2"), 404),
        case("unknown input", image(1, 1, 8, 8, name="picture"), 400),
        case("wrong datatype", image(1, 1, 8, 8, datatype="INT32"), 400),
        case("no batch dimension", image(1, 8, 8), 400),
        case("three channels", image(1, 3, 8, 8, values=192), 400),
        case("too few bytes", image(1, 1, 8, 8, values=63), 400),
        case("too many bytes", image(1, 1, 8, 8, values=65), 400),
        case("batch too large", image(65, 1, 1, 1, values=65), 400),
        case("no pixels: height zero", image(1, 1, 0, 8, values=0), 400),
        case("no pixels: width zero", image(1, 1, 8, 0, values=0), 400),
        case("no pixels in a batch", image(2, 1, 0, 0, values=0), 400),
    ),
]
