"""Shared memory over gRPC: the RPCs, and tensors that name a region.

Each case first registers its regions, and ends without regions, so that cases are independent.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from contract.grpc_casebook import GrpcCase, call, chapter, floats, infer, output, tensor, typed
from contract.recordings import PROCESS
from tritonclient.grpc import service_pb2 as pb

# Both servers map this object; the first half is for inputs, the second for outputs.
KEY = f"/grpc_regions_{PROCESS}"
SIZE = 8192
HALF = SIZE // 2
HANDLE = b"x" * 64


@contextlib.contextmanager
def shared_object() -> Iterator[None]:
    """Create the object that the cases register."""
    descriptor = os.open(f"/dev/shm{KEY}", os.O_CREAT | os.O_RDWR, 0o600)
    try:
        os.ftruncate(descriptor, SIZE)
        os.pwrite(descriptor, floats(*range(HALF // 4)), 0)
        yield
    finally:
        os.close(descriptor)
        os.unlink(f"/dev/shm{KEY}")  # noqa: PTH108 - not a path but a key


def register(name="r", key=KEY, byte_size=SIZE, offset=0):
    return call(
        "SystemSharedMemoryRegister",
        pb.SystemSharedMemoryRegisterRequest(
            name=name, key=key, byte_size=byte_size, offset=offset
        ),
    )


def register_cuda(name="c", raw_handle=HANDLE, device_id=0, byte_size=64):
    return call(
        "CudaSharedMemoryRegister",
        pb.CudaSharedMemoryRegisterRequest(
            name=name, raw_handle=raw_handle, device_id=device_id, byte_size=byte_size
        ),
    )


def status(name="", kind="System"):
    request_type = getattr(pb, f"{kind}SharedMemoryStatusRequest")
    return call(f"{kind}SharedMemoryStatus", request_type(name=name))


def unregister(name="", kind="System"):
    request_type = getattr(pb, f"{kind}SharedMemoryUnregisterRequest")
    return call(f"{kind}SharedMemoryUnregister", request_type(name=name))


def case(name, *calls, code="OK"):
    """Write a row; `code` is the status of the last call."""
    return GrpcCase(name, (unregister(), *calls), code)


def span(region=None, byte_size=None, offset=None):
    given = {"region": region, "byte_size": byte_size, "offset": offset}
    return {f"shared_memory_{key}": value for key, value in given.items() if value is not None}


def in_region(name, code="OK", *, contents=None, raw=(), model="vector", **given):
    x = tensor("X", "FP32", [2], contents, **span(**given))
    request = infer(model, x, raw=raw)
    return case(f"input {name}", register(), call("ModelInfer", request), code=code)


def to_region(name, code="OK", *, again=(), **given):
    """Write a row about an output in a region, which is then read back as an input."""
    wanted = [output("Y", **span(**given)), *again]
    request = infer("vector", tensor("X", "FP32", [2]), raw=[floats(8, 9)], outputs=wanted)
    calls = [register(), call("ModelInfer", request)]
    row = case(f"output {name}", *calls, code=code)
    if code != "OK":
        return row
    back = tensor("X", "FP32", [2], **span("r", 8, given.get("offset", 0)))
    return case(f"output {name}", *calls, call("ModelInfer", infer("vector", back)))


# Parameters of a tensor's position, with the real server's status for inputs and outputs.
SPANS = {
    "unknown region": ({"region": "zz", "byte_size": 8}, "NOT_FOUND"),
    "region without a name": ({"region": "", "byte_size": 8}, "NOT_FOUND"),
    "no size": ({"region": "r"}, "INVALID_ARGUMENT"),
    "no size but an offset": ({"region": "r", "offset": 8}, "INVALID_ARGUMENT"),
    "size of nothing": ({"region": "r", "byte_size": 0}, "INVALID_ARGUMENT"),
    "size below zero": ({"region": "r", "byte_size": -8}, "INVALID_ARGUMENT"),
    "size too large": ({"region": "r", "byte_size": SIZE + 1}, "INVALID_ARGUMENT"),
    "size beyond all": ({"region": "r", "byte_size": 2**63 - 1}, "INVALID_ARGUMENT"),
    "offset at the end": ({"region": "r", "byte_size": 8, "offset": SIZE}, "INVALID_ARGUMENT"),
    "offset near the end": (
        {"region": "r", "byte_size": 8, "offset": SIZE - 4},
        "INVALID_ARGUMENT",
    ),
    "offset below zero": ({"region": "r", "byte_size": 8, "offset": -8}, "INVALID_ARGUMENT"),
    "offset beyond all": ({"region": "r", "byte_size": 8, "offset": 2**63 - 1}, "INVALID_ARGUMENT"),
    "size as text": ({"region": "r", "byte_size": "8"}, "INVALID_ARGUMENT"),
    "offset as text": ({"region": "r", "byte_size": 8, "offset": "0"}, "INVALID_ARGUMENT"),
    "size and offset as text": (
        {"region": "r", "byte_size": "8", "offset": "0"},
        "INVALID_ARGUMENT",
    ),
    "all of other types": ({"region": 1, "byte_size": "8", "offset": "0"}, "INVALID_ARGUMENT"),
    "size alone": ({"byte_size": 8}, "INVALID_ARGUMENT"),
    "offset alone": ({"offset": 8}, "INVALID_ARGUMENT"),
    "size and offset alone": ({"byte_size": 8, "offset": 8}, "INVALID_ARGUMENT"),
}

CASES = [
    *chapter(
        "region",
        case("none", status()),
        case("one of none", status("r"), code="NOT_FOUND"),
        case("registered", register(), status()),
        case("one registered", register(), status("r")),
        case("another than registered", register(), status("s"), code="NOT_FOUND"),
        case("part of the object", register(byte_size=64, offset=4096), status("r")),
        case("key without its slash", register(key=KEY[1:]), status("r")),
        case("twice", register(), register(), code="ALREADY_EXISTS"),
        case("no such object", register(key="/there_is_none"), code="INTERNAL"),
        case("no key", register(key=""), code="INTERNAL"),
        case("too large", register(byte_size=SIZE + 1), code="INVALID_ARGUMENT"),
        case("beyond the object", register(byte_size=SIZE, offset=4096), code="INVALID_ARGUMENT"),
        case("of no bytes", register(byte_size=0), code="INVALID_ARGUMENT"),
        case("offset not of a page", register(byte_size=8, offset=8), code="INVALID_ARGUMENT"),
        case("without a name", register(name=""), status()),
        case("unregistered", register(), unregister("r"), status()),
        case("all unregistered", register(), unregister(), status()),
        case("another unregistered", register(), unregister("s"), status("r")),
        case("unregistered as CUDA", register(), unregister("r", "Cuda"), status("r")),
        case("all CUDA unregistered", register(), unregister("", "Cuda"), status("r")),
        case(
            "used after it was unregistered",
            register(),
            unregister("r"),
            call("ModelInfer", infer("vector", tensor("X", "FP32", [2], **span("r", 8)))),
            code="NOT_FOUND",
        ),
    ),
    *chapter(
        "CUDA region",
        case("none", status("", "Cuda")),
        case("one of none", status("c", "Cuda"), code="NOT_FOUND"),
        case("one that is a system's", register(), status("r", "Cuda"), code="NOT_FOUND"),
        case("a name that is taken", register(), register_cuda("r"), code="ALREADY_EXISTS"),
        case("handle of nobody", register_cuda(), code="INVALID_ARGUMENT"),
        case("handle too short", register_cuda(raw_handle=b"x" * 63), code="INVALID_ARGUMENT"),
        case("no handle", register_cuda(raw_handle=b""), code="INVALID_ARGUMENT"),
        case("device below zero", register_cuda(device_id=-1), code="INVALID_ARGUMENT"),
        case("of no bytes", register_cuda(byte_size=0), code="INVALID_ARGUMENT"),
        case("unregister unknown", unregister("c", "Cuda")),
    ),
    *chapter(
        "in a region",
        in_region("good", region="r", byte_size=8),
        in_region("at an offset", region="r", byte_size=8, offset=16),
        in_region("at an odd offset", region="r", byte_size=8, offset=17),
        in_region("at the end", region="r", byte_size=8, offset=HALF - 8),
        in_region("of another size", "INVALID_ARGUMENT", region="r", byte_size=16),
        in_region("beside raw contents", raw=[floats(8, 9)], region="r", byte_size=8),
        in_region(
            "beside typed contents",
            "INVALID_ARGUMENT",
            contents=typed(fp32_contents=[1, 2]),
            region="r",
            byte_size=8,
        ),
        in_region(
            "beside empty contents", "INVALID_ARGUMENT", contents=typed(), region="r", byte_size=8
        ),
        in_region(
            "unknown, beside typed contents",
            "INVALID_ARGUMENT",
            contents=typed(fp32_contents=[1, 2]),
            region="zz",
            byte_size=8,
        ),
        *(in_region(name, code, **given) for name, (given, code) in SPANS.items()),
        to_region("good", region="r", byte_size=8, offset=HALF),
        to_region("in a larger place", region="r", byte_size=64, offset=HALF),
        to_region("at an odd offset", region="r", byte_size=8, offset=HALF + 3),
        to_region("in too small a place", "INTERNAL", region="r", byte_size=4, offset=HALF),
        to_region("in no place", "INTERNAL", region="r", byte_size=0, offset=HALF),
        to_region(
            "and once more without", region="r", byte_size=8, offset=HALF, again=[output("Y")]
        ),
        *(to_region(name, code, **given) for name, (given, code) in SPANS.items()),
        case(
            "output with classes",
            register(),
            call(
                "ModelInfer",
                infer(
                    "vector",
                    tensor("X", "FP32", [2]),
                    raw=[floats(1, 2)],
                    outputs=[output("Y", classification=1, **span("r", 8))],
                ),
            ),
            code="INVALID_ARGUMENT",
        ),
        case(
            "unknown output",
            register(),
            call(
                "ModelInfer",
                infer(
                    "vector",
                    tensor("X", "FP32", [2]),
                    raw=[floats(1, 2)],
                    outputs=[output("Z", **span("zz", 8))],
                ),
            ),
            code="NOT_FOUND",
        ),
        case(
            "input's place before the output's",
            call(
                "ModelInfer",
                infer(
                    "vector",
                    tensor("X", "FP32", [2], **span(offset=1)),
                    outputs=[output("Y", **span(byte_size=1))],
                ),
            ),
            code="INVALID_ARGUMENT",
        ),
        case(
            "over a stream",
            register(),
            call(
                "ModelStreamInfer",
                infer(
                    "vector",
                    tensor("X", "FP32", [2], **span("r", 8, 8)),
                    outputs=[output("Y", **span("r", 8, HALF))],
                    id="1",
                ),
                # Not from the first request's output, which might be read before it is written.
                infer("vector", tensor("X", "FP32", [2], **span("r", 8)), id="2"),
            ),
        ),
    ),
]
